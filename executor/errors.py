"""What can be wrong with a model or with the settings of an executor."""


class UnsupportedModel(ValueError):
    """The checkpoint describes a model, or a variant of one, that the decoder can't run."""


class CheckpointError(ValueError):
    """The checkpoint is incomplete or contradicts itself: a missing file or weight, a wrong shape, a bad field."""


class VocabularyError(Exception):
    """What the model's tokens mean is not known here, so no answer can be guided."""


class StepOutOfMemory(MemoryError):
    """There was no memory to compute a step, not even token by token."""


class SettingsError(ValueError):
    """A setting is malformed, or impossible for this model and this machine."""
