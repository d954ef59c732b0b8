from memfit.tracing.virtual.dispatch import Dispatch


def install(gpu: Dispatch) -> None:
    pass
