"""Whether the Hugging Face Hub can be reached."""


def hub_problem() -> str | None:
    """Why the Hub cannot be reached, or None if it can.

    The Hub's own clients retry for most of a minute before they give up; this asks once, for five seconds. With
    ``HF_HUB_OFFLINE`` set, the local cache serves, and nothing is asked.
    """
    import huggingface_hub
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return None
    try:
        huggingface_hub.utils.get_session().head(constants.ENDPOINT, timeout=5)
    except Exception:  # whichever HTTP library the client uses
        return (
            "the Hugging Face Hub cannot be reached from this machine "
            "(a copy in the local cache is used with HF_HUB_OFFLINE=1)"
        )
    return None
