"""The fields of objects in files, checked, with errors that name the file and line."""

from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from contextwise.base.errors import DataError
from contextwise.base.problems import problems_of


class Form(BaseModel):
    """Base class for the fields of an object in a user file; other fields are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore")


RowForm = TypeVar("RowForm", bound=Form)


def checked(form: type[RowForm], row: dict[str, Any], where: str, wanted: str) -> RowForm:
    """Validate an object of a file and line (``where``) against its form; a DataError names the first five problems."""
    try:
        return form.model_validate(row)
    except ValidationError as error:
        problems = [str(problem) for each in error.errors() for problem in problems_of(form, each)]
    more = f" and {len(problems) - 5:,} more problems" if len(problems) > 5 else ""
    fields = ", ".join(map(repr, list(row)[:8])) or "none"
    raise DataError(f"{where}: {', '.join(problems[:5])}{more} (fields: {fields}); {wanted}")
