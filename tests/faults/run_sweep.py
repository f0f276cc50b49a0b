import multiprocessing
import pathlib
import random
import sys
import tempfile
import traceback

from tests.faults import sweep


def reference(tmp):
    scene = sweep.build(tmp / "ref")
    r = sweep.run(scene.root, "route")
    assert r.returncode == 0, (r.stdout, r.stderr)
    return sweep.state(scene.root)


def norm(st, root, to):
    return st


def one(args):
    tmp, name, n, fault, ref, small = args
    root = pathlib.Path(tmp) / "w" / f"office-{multiprocessing.current_process().pid}"
    scene = sweep.build(root, small=small)
    try:
        inj = f"{name}:signal=KILL:when={n}" if fault == "KILL" else f"{name}:error={fault}:when={n}"
        done, text = sweep.trace(root, name, inj)
        if fault == "KILL":
            assert done.returncode in (-9, 137), ("not killed", done.returncode, done.stderr)
        else:
            assert "(INJECTED)" in text, "not injected"
        assert "Traceback" not in done.stderr, done.stderr[-1500:]
        sweep.assert_nothing_lost(scene)
        rec = sweep.run(root, "route")
        assert rec.returncode in (0,), ("recovery", rec.returncode, rec.stderr, done.stderr)
        if fault == "KILL":
            sweep.assert_whole(scene, ref)
        else:
            check_error(scene, ref)
        before = sweep.state(root)
        third = sweep.run(root, "route")
        assert third.returncode == 0
        assert sweep.state(root) == before, "third run changed something"
        return None
    except Exception:
        return (name, n, fault, traceback.format_exc()[-2500:])


def check_error(scene, ref):
    now = sweep.state(scene.root)
    import json

    lg = [l for l in now["log"] if '"deferred"' not in l]

    def key(l):
        d = json.loads(l)
        return (d["file"], d["action"], d.get("agent"))

    assert sorted(map(key, lg), key=str) == sorted(map(key, ref["log"]), key=str), sweep.difference(
        {str(key(l)): l for l in lg}, {str(key(l)): l for l in ref["log"]}
    )
    seqs = {}
    for l in lg:
        d = json.loads(l)
        if "sequence" in d:
            seqs.setdefault(d["correlation_id"], {}).setdefault(d["sequence"], set()).add(d["file"])
    for f, s in seqs.items():
        assert sorted(s) == list(range(1, len(s) + 1)) and all(len(x) == 1 for x in s.values()), (f, s)
    assert not sweep.litter(scene.root), sweep.litter(scene.root)
    assert not [p for p in (scene.root / "outbox").iterdir()]


if __name__ == "__main__":
    mode = sys.argv[1]
    frac = float(sys.argv[2]) if len(sys.argv) > 2 else 1
    tmp = pathlib.Path(tempfile.mkdtemp(dir="/tmp"))
    (tmp / "w").mkdir()
    # reference must be root independent: paths in the log are relative
    ref = reference(tmp)
    scene = sweep.build(tmp / "count")
    counts = sweep.call_counts(scene.root, sweep.MUTATING)
    print(counts)
    jobs = [
        (tmp, n, i, f, ref, False)
        for n, (a, b) in counts.items()
        if (n in sweep.PERSISTING or mode != "KILL")
        for i in range(a, b + 1)
        for f in (["KILL"] if mode == "KILL" else sweep.ERRORS if mode == "ERR" else [mode])
    ]
    random.seed(1)
    random.shuffle(jobs)
    jobs = jobs[: int(len(jobs) * frac)]
    print(len(jobs), "jobs", flush=True)
    with multiprocessing.Pool(2) as p:
        bad = 0
        for r in p.imap_unordered(one, jobs):
            if r:
                bad += 1
                print("FAIL", *r[:3])
                print(r[3]) if bad < 7 else None
        print("bad", bad, "of", len(jobs))
