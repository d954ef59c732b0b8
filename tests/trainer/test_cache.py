"""The cache is emptied when numbers call for it, and never by the clock."""

from memfit.trainer.cache import THRASH_STEPS, CacheNumbers, CacheWatch, explain

GIB = 2**30


def numbers(retries: int = 0, reserved: int = 10, peak: int = 10, total: int = 40) -> CacheNumbers:
    return CacheNumbers(
        num_retries=retries,
        reserved_bytes=reserved * GIB,
        peak_allocated_bytes=peak * GIB,
        total_bytes=total * GIB,
    )


def test_a_run_without_retries_never_empties_its_cache() -> None:
    watch = CacheWatch()

    assert {watch.after_step(numbers(retries=7, reserved=39, peak=37)) for _ in range(1000)} == {
        "nothing"
    }


def test_retries_before_the_first_step_are_not_the_runs() -> None:
    assert CacheWatch().after_step(numbers(retries=100)) == "nothing"


def test_one_step_with_retries_empties_the_cache_and_the_next_is_an_out_of_memory() -> None:
    watch = CacheWatch()

    said = [watch.after_step(numbers(retries=count)) for count in (0, 1, 3, 4, 4, 5)]

    assert THRASH_STEPS == 2
    assert said == ["nothing", "empty", "thrash", "empty", "nothing", "empty"]


def test_retries_now_and_then_are_never_thrash() -> None:
    watch = CacheWatch()

    assert [watch.after_step(numbers(retries=step // 2)) for step in range(9)].count("thrash") == 0


def test_a_full_card_in_pieces_is_emptied_once_and_again_only_when_it_had_helped() -> None:
    watch = CacheWatch()
    whole, in_pieces = numbers(reserved=38, peak=37), numbers(reserved=38, peak=30)

    said = [watch.after_step(n) for n in (whole, in_pieces, in_pieces, in_pieces, whole, in_pieces)]

    assert said == ["nothing", "empty", "nothing", "nothing", "nothing", "empty"]


def test_pieces_on_a_card_with_room_do_no_harm() -> None:
    assert CacheWatch().after_step(numbers(reserved=30, peak=5)) == "nothing"


def test_what_was_done_is_said_with_the_numbers() -> None:
    assert explain("empty", numbers(reserved=38, peak=30)) == (
        "cached memory was given back to the driver (38.00 GiB of 40.00 GiB reserved, at most "
        "30.00 GiB of it in use)"
    )
    assert "taken as an out-of-memory, and the micro-batch was halved" in explain(
        "thrash", numbers()
    )


def test_thrash_that_nothing_can_be_halved_for_says_what_to_do() -> None:
    assert "cannot be halved, so steps stay slow: write --loss chunked" in explain(
        "thrash", numbers(), "write --loss chunked"
    )
