"""Out of memory: steps in flight go first, then the pool, then the pool for good, then there is nothing left."""

import threading

from flodl_pipe.memory.ladder import Ladder

MIB = 1 << 20


def test_every_rung_comes_in_its_order():
    ladder = Ladder(slab_bytes=MIB)
    depth, pool_bytes, taken = 8, 5 * MIB, []
    while True:
        rung = ladder.give_way(depth=depth, pool_bytes=pool_bytes)
        depth, pool_bytes = rung.depth, rung.pool_bytes
        taken.append((rung.action, rung.depth, rung.pool_bytes // MIB))
        if rung.action == "nothing":
            break
    assert taken == [
        ("depth", 4, 5),
        ("depth", 2, 5),
        ("depth", 1, 5),
        ("pool", 1, 2),
        ("pool", 1, 1),
        ("pool", 1, 0),
        ("latch", 1, 0),
        ("nothing", 1, 0),
    ]
    assert ladder.is_latched


def test_the_words_say_what_happened_and_what_helps():
    ladder = Ladder(slab_bytes=MIB)
    assert ladder.give_way(depth=2, pool_bytes=2 * MIB, what="64.0 MiB of rows").words == (
        "the device has no memory left for 64.0 MiB of rows: 1 instead of 2 steps are kept in flight from now on"
    )
    assert "the sample pool shrinks from 2.00 MiB to 1.00 MiB" in ladder.give_way(depth=1, pool_bytes=2 * MIB).words
    ladder.give_way(depth=1, pool_bytes=MIB)
    assert "the pool stays off until auto_resize()" in ladder.give_way(depth=1, pool_bytes=0).words
    assert "lower loader.batch_size" in ladder.give_way(depth=1, pool_bytes=0).words


def test_ceilings_come_down_only_until_the_user_asks_for_a_new_size():
    ladder = Ladder(slab_bytes=1)
    assert (ladder.cap_depth(100), ladder.cap_pool(100)) == (100, 100)
    ladder.give_way(depth=16, pool_bytes=100)
    assert (ladder.cap_depth(100), ladder.cap_depth(3), ladder.cap_pool(100)) == (8, 3, 100)
    ladder.give_way(depth=1, pool_bytes=100)
    assert ladder.cap_pool(100) == 50
    for _ in range(10):
        ladder.give_way(depth=1, pool_bytes=100)
    assert (ladder.cap_depth(100), ladder.cap_pool(100), ladder.is_latched) == (8, 0, True)
    ladder.reset()
    assert (ladder.cap_depth(100), ladder.cap_pool(100), ladder.is_latched) == (100, 100, False)


def test_a_second_thread_with_the_same_shortage_goes_one_rung_further():
    ladder, found = Ladder(slab_bytes=1), []
    threads = [
        threading.Thread(target=lambda: found.append(ladder.give_way(depth=64, pool_bytes=0).depth)) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [1, 2, 4, 8, 16, 32]
