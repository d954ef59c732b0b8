"""What each technique saves and costs, beside a plain loop and Hugging Face's Trainers.

    python -m benchmarks.techniques     (make techniques)

Every contender is a process of its own (``worker``), which takes one step each time it is told to
(``turns``).  The parent lets them take turns (``rounds``), so that a slow minute of the machine is
every contender's.  ``contenders`` says what is compared; ``docs/techniques.md`` is written from the
result, and so are the measured costs on the pages under ``docs/how-to``.
"""
