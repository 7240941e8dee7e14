"""When several claims hold together."""

from contextwise.reproductions.claims import all_hold


def test_one_that_fails_settles_it_and_one_that_is_open_keeps_it_open():
    assert all_hold([True, True]) is True
    assert all_hold([True, None, False]) is False
    assert all_hold([True, None]) is None
    assert all_hold([]) is None
