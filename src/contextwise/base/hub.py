"""Check whether the Hugging Face Hub can be reached."""


def hub_problem() -> str | None:
    """Describe why the Hub cannot be reached, or return None if it can.

    The Hub's own clients retry for most of a minute; this function makes one request, with a timeout of five seconds. With
    ``HF_HUB_OFFLINE`` set, the local cache is used and no request is made.
    """
    import huggingface_hub
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return None
    try:
        huggingface_hub.utils.get_session().head(constants.ENDPOINT, timeout=5)
    except Exception:  # the errors depend on the client's HTTP library
        return (
            "the Hugging Face Hub cannot be reached from this machine "
            "(a copy in the local cache is used with HF_HUB_OFFLINE=1)"
        )
    return None
