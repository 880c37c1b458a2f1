"""Minutes: by how much the load of an instance was above or below the mean of its five minutes, in each of them.

The load that a registration tells is a step function. Where the same registrations tell theirs for all of a window, the
changes within it are enough: the mean is known, and a change at some time raises the rest of the window. So there is a
row for each change of a load, whatever the number of records.

Rules:
- A window in which an instance registers, ends, is silent, tells its first load, or loses its broker has no minutes: a
  load that is not known in one of them must not look like one that rose in another. The five minutes stand.
- Of an instance with two registrations, with one broker or two, the loads are averaged, as those of the window are.
- A window without a change has no minutes either: they are all the same.
"""

import numpy as np

from spark.capacity.rollup.registrations import Lived, Names
from spark.capacity.rollup.up_intervals import Pieces
from spark.capacity.rollup.window_sums import Minutes
from spark.capacity.tables.time_windows import DAY, FIVE_MINUTES, MINUTE, MINUTES, WINDOWS, Floats, Ints


def minutes_of(lives: Lived, pieces: Pieces, names: Names, begin: int) -> Minutes:
    """Find the minutes of the date that begins at `begin`."""
    row, from_, to = _told(lives, pieces)
    records = lives.records
    instance, registration, load = names.instance_of[records.site[row]], records.registration[row], records.load[row]
    # One load follows another without a break.
    goes_on = (instance[1:] == instance[:-1]) & (registration[1:] == registration[:-1]) & (from_[1:] == to[:-1])
    first, last = np.append(True, ~goes_on)[: len(row)], np.append(~goes_on, True)[: len(row)]
    broken = _keys(
        np.append(instance[first], instance[last]), np.append(from_[first], to[last]), np.ones(2 * first.sum()), begin
    )[0]
    next_ = np.flatnonzero(goes_on) + 1
    keys, at, by = _keys(instance[next_], from_[next_], load[next_] - load[next_ - 1], begin)
    whole = ~np.isin(keys, broken)
    return _rises(keys[whole], at[whole], by[whole])


def _told(lives: Lived, pieces: Pieces) -> tuple[Ints, Ints, Ints]:
    """Return the times for which a load is told, in the order of the records: the record, from when, and to when.

    Records that follow each other with the same load are one: there are many beats for each load.
    """
    records, short = lives.records, lives.short & ~np.isnan(lives.records.load)
    load, site = records.load, records.site
    goes_on = short[1:] & short[:-1] & (load[1:] == load[:-1]) & (site[1:] == site[:-1])
    first = np.flatnonzero(short & np.append(True, ~goes_on)[: len(short)])
    last = np.flatnonzero(short & np.append(~goes_on, True)[: len(short)])
    longer = np.flatnonzero(~np.isnan(load[pieces.row]))
    row = np.append(first, pieces.row[longer])
    from_, to = np.append(records.at[first], pieces.from_[longer]), np.append(lives.next[last], pieces.up_to[longer])
    order = np.argsort(row, kind="stable")
    order = order[to[order] > from_[order]]
    return row[order], from_[order], to[order]


def _keys(instance: Ints, at: Ints, by: Floats, begin: int) -> tuple[Ints, Ints, Floats]:
    """Return the windows in which something changes, when in them, and by how much.

    What changes with the beginning of a window changes nothing within it.
    """
    window, inside = (at - begin) // FIVE_MINUTES, at % FIVE_MINUTES
    within = (by != 0) & (inside > 0) & (at >= begin) & (at < begin + DAY)
    return (instance * WINDOWS + window)[within], inside[within], by[within]


def _rises(keys: Ints, inside: Ints, by: Floats) -> Minutes:
    """Add up the changes of each window: one is there for a part of its minute, and for all later ones."""
    of, number = np.unique(keys, return_inverse=True)
    place, shape = number * MINUTES + inside // MINUTE, (len(of), MINUTES)
    made = np.bincount(place, by * (1 - inside % MINUTE / MINUTE), minlength=len(of) * MINUTES).reshape(shape)
    whole = np.bincount(place, by, minlength=len(of) * MINUTES).reshape(shape)
    made[:, 1:] += np.cumsum(whole, axis=1)[:, :-1]
    # Divided first: the sum of the largest numbers would be none.
    return Minutes(of, made - (made / MINUTES).sum(axis=1, keepdims=True))
