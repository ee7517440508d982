import re

from argrad.data.catalogue import CATALOGUE, OMNIGLOT, File


def test_every_source_is_complete() -> None:
    for name, source in CATALOGUE.items():
        assert source.name == name
        assert source.description
        assert source.licence
        assert bool(source.files) == bool(source.folders)
        assert source.files == () or source.folders[0] == name


def test_every_hash_is_well_formed_and_every_download_has_a_size() -> None:
    lengths = {"sha256": 64, "md5": 32}
    for source in CATALOGUE.values():
        for file in source.files:
            for known in (file.hash, *(known for _, known in file.repacked)):
                algorithm, _, digits = known.partition(":")
                assert re.fullmatch(r"[0-9a-f]+", digits)
                assert len(digits) == lengths[algorithm]
            if file.urls:
                assert file.hash.startswith("sha256:")
                assert file.size > 0
                assert len(file.urls) >= 2, "one mirror may be down"
                assert all(url.endswith(f"/{file.name}") for url in file.urls)


def test_hashes_go_with_names() -> None:
    file = File("a", 1, "md5:0", repacked=(("a.gz", "md5:1"), ("a", "md5:2")))
    assert file.names == ("a", "a.gz")
    assert file.hashes("a") == ("md5:0", "md5:2")
    assert file.hashes("a.gz") == ("md5:1",)
    assert len(OMNIGLOT.files[0].hashes("images_background.zip")) == 2
