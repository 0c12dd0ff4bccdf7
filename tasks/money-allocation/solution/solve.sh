#!/bin/sh
set -e
cd "${APP:-/app}"
python3 - <<'PY'
from pathlib import Path


def replace(name, old, new):
    path = Path(name)
    text = path.read_text()
    assert text.count(old) == 1, name
    path.write_text(text.replace(old, new))


replace(
    'money.py',
    r'''    return int(amount * 100)''',
    r'''    cents = amount * 100
    if not amount.is_finite() or cents != int(cents):
        raise ValueError(f"{text!r} is no amount of whole cents")
    return int(cents)''',
)
replace(
    'ledger.py',
    r'''    return [round(cents * weight / sum(weights)) for weight in weights]''',
    r'''    if cents < 0:
        return [-share for share in allocate(-cents, weights)]
    shares, remainders = zip(*(divmod(cents * weight, sum(weights)) for weight in weights))
    shares = list(shares)
    ranked = sorted(range(len(weights)), key=lambda index: -remainders[index])
    for index in ranked[: cents - sum(shares)]:
        shares[index] += 1
    return shares''',
)
PY
