"""Shapes of the functions that are mutated, and the words that fill them.

Marks in a shape: `@n` a noun, `@p` the phrase of the place that may be wrong and `@h` its form; `@q` and `@g` the same
for a second documented place; `@w` and `@d` the words and code of a decoy, a right form named in other words.
`TRAINING` shapes make the training split and, with other nouns, the same-template split. `UNSEEN` shapes, none of which
equals a training one after renaming, make the new-template split.
"""

from dataclasses import dataclass

from agentic.tasks.mutation.forms import Kind

TRAINING_NOUNS = (
    "price", "score", "age", "weight", "length", "vote", "stock", "width", "speed", "level", "cost", "rate", "fee",
    "wage", "depth", "height", "grade", "load", "volume", "budget", "ticket", "lap", "page", "seat",
)  # fmt: skip
HELD_OUT_NOUNS = (
    "temperature", "reward", "cable", "distance", "delay", "crowd", "harvest", "token", "queue", "badge", "parcel",
    "quota",
)  # fmt: skip


@dataclass(frozen=True)
class Template:
    """One shape of a function."""

    name: str
    parameters: str
    doc: str
    body: tuple[str, ...]
    arguments: tuple[str, ...]
    """What each parameter is drawn from (see `arguments.py`)."""
    kind: Kind
    second: Kind | None = None
    """Kind of the second documented place, if there is one."""
    decoys: tuple[tuple[str, str], ...] = ()
    """Choices of (words, code) for the marks `@w` and `@d`."""


ITEM = (("top", "max(@ns)"), ("bottom", "min(@ns)"), ("opening", "@ns[0]"), ("closing", "@ns[-1]"))
SHIFT = (("raised by k", " + k"), ("lowered by k", " - k"), ("scaled by k", " * k"), ("reduced by k", " % k"))
SIDE = (("over", " > "), ("under", " < "), ("not under", " >= "), ("not over", " <= "))
BUT = (("except", " != "), ("up to", " <= "))
STEP = (("raised by 1", " + 1"), ("lowered by 1", " - 1"), ("scaled by 2", " * 2"))
SIZE = (("big", " > 4"), ("small", " < 6"), ("large", " >= 5"), ("little", " <= 5"))
PART = (("leading", "[:n]"), ("trailing", "[-n:]"), ("late", "[n:]"), ("early", "[:-n]"))
EXTREME = (("top", "max("), ("bottom", "min("))
TALLY = (("Count", "len("), ("Add up", "sum("))

TRAINING = (
    Template("is_@n_ok", "@ns, limit", "Tell whether the @w @n is @p limit.", ("return @d@hlimit",),
             ("numbers", "limit"), Kind.BOUNDS, decoys=ITEM),
    Template("count_@ns", "@ns, limit", "@w the @ns that are @p limit.", ("return @d[x for x in @ns if x@hlimit])",),
             ("numbers", "limit"), Kind.BOUNDS, decoys=TALLY),
    Template("pick_@ns", "@ns, limit, n", "Return the @w @ns that are @p limit.",
             ("return [x for x in @ns@d if x@hlimit]",), ("numbers", "limit", "few"), Kind.BOUNDS, decoys=PART),
    Template("join_@n", "@ns, k", "Return the @p of the @w @n and k.", ("return @d@hk",),
             ("numbers", "factor"), Kind.OPERATORS, decoys=ITEM),
    Template("map_@ns", "@ns, k", "Return the @p of each @w @n and k.", ("return [x@hk for x in @ns if x@d]",),
             ("numbers", "factor"), Kind.OPERATORS, decoys=SIZE),
    Template("@n_summary", "@ns, n", "Return the @p of the @w @ns.", ("return @h@ns@d)",),
             ("numbers", "few"), Kind.FOLD, decoys=PART),
    Template("@n_score", "@ns, k", "Tell whether the @p of the @ns is @w k.", ("return @h@ns)@dk",),
             ("numbers", "any"), Kind.FOLD, decoys=SIDE),
    Template("@n_at", "@ns, k", "Return the @p of the @ns, @w.", ("return @ns@h@d",),
             ("numbers", "factor"), Kind.INDEX, decoys=SHIFT),
    Template("sorted_@n", "@ns, k", "Return the @p of the @ns in order, @w.",
             ("ordered = sorted(@ns)", "return ordered@h@d"), ("numbers", "factor"), Kind.INDEX, decoys=SHIFT),
    Template("part_@ns", "@ns, n", "Return the @w of the @p of the @ns.", ("return @d@ns@h)",),
             ("numbers", "few"), Kind.SLICE, decoys=EXTREME),
    Template("cut_@ns", "@ns, n", "Return the @w ones in the @p of the @ns.",
             ("part = @ns@h", "return [x for x in part if x@d]"), ("numbers", "few"), Kind.SLICE, decoys=SIZE),
    Template("@n_numbers", "n, k", "List the @n @p for n, @w.", ("return [x@d for x in range@h]",),
             ("size", "factor"), Kind.RANGE, decoys=SHIFT),
    Template("@n_codes", "n, k", "Return the @n @p for n @w k.",
             ("codes = range@h", "return [x for x in codes if x@dk]"), ("size", "factor"), Kind.RANGE, decoys=BUT),
    Template("@n_power", "a, b, c", "Return the @n power in order @p, @w.", ("return pow@h@d",),
             ("digit", "digit", "digit"), Kind.SWAP, decoys=STEP),
    Template("@n_steps", "a, b, c", "@w the @n steps in order @p.", ("return @drange@h)",),
             ("digit", "digit", "digit"), Kind.SWAP, decoys=TALLY),
    Template("top_@n", "@ns, k", "Return the @w @n other than k, else @p.", ("return @d[x for x in @ns if x != k]@h",),
             ("numbers or none", "factor"), Kind.GUARD, decoys=EXTREME),
    Template("@n_peak", "@ns, k", "Return the top of the @ns, @w, else @p.",
             ("found = [x@d for x in @ns]", "return max(found@h"), ("numbers or none", "factor"), Kind.GUARD,
             decoys=SHIFT),
    Template("best_@n", "@ns, limit", "Return the @q of the @ns that are @p limit.",
             ("kept = [x for x in @ns if x@hlimit]", "return @gkept)"), ("numbers", "limit"), Kind.BOUNDS, Kind.FOLD),
    Template("gap_@ns", "@ns, k", "Return the @q of k and the @p of the @ns.",
             ("found = @h@ns)", "return k@gfound"), ("numbers", "large"), Kind.FOLD, Kind.OPERATORS),
    Template("mix_@n", "@ns, k", "Return the @q of the @p of the @ns and k.",
             ("found = @ns@h", "return found@gk"), ("numbers", "factor"), Kind.INDEX, Kind.OPERATORS),
)  # fmt: skip

UNSEEN = (
    Template("has_@n", "@ns, limit, n", "Tell whether some of the @w @ns is @p limit.",
             ("for x in @ns@d:", "    if x@hlimit:", "        return True", "return False"),
             ("numbers", "limit", "few"), Kind.BOUNDS, decoys=PART),
    Template("@n_side", "@ns, limit", "Say yes if the @w @n is @p limit, else no.",
             ("return 'yes' if @d@hlimit else 'no'",), ("numbers", "limit"), Kind.BOUNDS, decoys=ITEM),
    Template("mate_@ns", "@ns, mates", "Return the @p of each @w @n and its mate.",
             ("return [x@hy for x, y in zip(@ns, mates) if x@d]",), ("numbers", "numbers"), Kind.OPERATORS,
             decoys=SIZE),
    Template("run_@n", "@ns, k", "Add up the @p of every @w @n and k.",
             ("out = 0", "for x in @ns:", "    if x@d:", "        out += x@hk", "return out"),
             ("numbers", "factor"), Kind.OPERATORS, decoys=SIZE),
    Template("@n_rows", "@ns, n", "Return the @p of the @w items of each @n row.",
             ("return [@hrow@d) for row in @ns]",), ("rows", "few"), Kind.FOLD, decoys=PART),
    Template("@n_map", "@ns, k", "Map how many @n rows there are to the @p of their lengths, @w.",
             ("return {len(@ns): @hmap(len, @ns))@d}",), ("ragged", "factor"), Kind.FOLD, decoys=SHIFT),
    Template("@n_column", "@ns, k", "Return the @p of each @n row, @w.", ("return [row@h@d for row in @ns]",),
             ("rows", "factor"), Kind.INDEX, decoys=SHIFT),
    Template("mark_@ns", "@ns, k", "Map the @p of the @ns to itself, @w.", ("item = @ns@h", "return {item: item@d}"),
             ("numbers", "factor"), Kind.INDEX, decoys=SHIFT),
    Template("@n_cells", "@ns, n", "Return the @w ones in the @p of each @n row.",
             ("return [[x for x in row@h if x@d] for row in @ns]",), ("rows", "few"), Kind.SLICE, decoys=SIZE),
    Template("@n_split", "@ns, n", "Return the @w of the @p of the @ns, and how many.",
             ("kept = @ns@h", "return @dkept), len(kept)"), ("numbers", "few"), Kind.SLICE, decoys=EXTREME),
    Template("@n_digits", "n, k", "Add up the @n @p for n, each @w.",
             ("out = 0", "for x in range@h:", "    out += x@d", "return out"), ("size", "factor"), Kind.RANGE,
             decoys=SHIFT),
    Template("@n_table", "n, k", "Map the @n @p for n to themselves, @w.",
             ("return {x: x@d for x in range@h}",), ("size", "factor"), Kind.RANGE, decoys=SHIFT),
    Template("@n_pair", "a, b, c", "Pair a, @w, with the @n power in order @p.", ("return [a@d, pow@h]",),
             ("digit", "digit", "digit"), Kind.SWAP, decoys=STEP),
    Template("@n_window", "a, b, c", "@w the @n window in order @p.",
             ("window = range(9)[slice@h]", "return @dwindow)"), ("digit", "digit", "digit"), Kind.SWAP,
             decoys=TALLY),
    Template("@n_tops", "@ns", "Return the @w of each @n row, else @p.", ("return [@drow@h for row in @ns]",),
             ("rows or none",), Kind.GUARD, decoys=EXTREME),
    Template("cap_@n", "@ns, limit", "Return the @w @n, else @p, or limit if that is less.",
             ("best = @d@ns@h", "return limit if best is not None and limit < best else best"),
             ("numbers or none", "limit"), Kind.GUARD, decoys=EXTREME),
)  # fmt: skip
