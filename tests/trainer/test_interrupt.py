"""The first Ctrl-C asks, the second one ends."""

import os
import signal
import threading

import pytest

from memfit.trainer.interrupt import Interrupt


def send(number: signal.Signals) -> None:
    """Sends a signal to this process; its handler has run when this returns."""
    os.kill(os.getpid(), number)


def handlers() -> list[object]:
    return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_a_request(number):
    with Interrupt() as interrupt:
        before = interrupt.requested
        send(number)

        assert (before, interrupt.requested) == (False, True)


def test_a_second_ctrl_c_ends_at_once():
    with Interrupt() as interrupt:
        send(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)

        assert interrupt.requested


def test_a_repeated_sigterm_is_still_one_request():
    with Interrupt() as interrupt:
        send(signal.SIGTERM)
        send(signal.SIGTERM)

        assert interrupt.requested


@pytest.mark.parametrize("error", [None, RuntimeError])
def test_the_former_handlers_are_back_afterwards(error):
    before = handlers()

    def leave() -> None:
        with Interrupt():
            assert handlers() != before
            if error:
                raise error

    if error:
        with pytest.raises(error):
            leave()
    else:
        leave()

    assert handlers() == before


def test_outside_the_main_thread_nothing_is_handled():
    before, seen = handlers(), []

    def enter() -> None:
        with Interrupt() as interrupt:
            seen.append((handlers(), interrupt.requested))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()

    assert seen == [(before, False)]
