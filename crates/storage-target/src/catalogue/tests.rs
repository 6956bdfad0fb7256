//! Proves that volumes are made whole or not at all, found while others work, and not deleted while they are used.

use super::*;

fn catalogue() -> (tempfile::TempDir, Catalogue) {
    let dir = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::open(dir.path()).unwrap();
    (dir, catalogue)
}

#[test]
fn made_listed_shown_deleted() {
    let (_dir, catalogue) = catalogue();
    assert!(catalogue.list().unwrap().is_empty());
    let plain = catalogue.create(&VolumeSpec::plain("p", 1 << 20)).unwrap();
    let sealed = catalogue.create(&VolumeSpec::sealed("s", 1 << 20)).unwrap();
    assert_ne!(plain.id, sealed.id);
    assert_eq!(catalogue.names().unwrap().iter().map(VolumeName::as_str).collect::<Vec<_>>(), ["p", "s"]);
    let shown = catalogue.show("s").unwrap();
    assert_eq!(shown.volume, sealed);
    assert!(!shown.in_use && shown.host_bytes > 0);
    catalogue.delete("p").unwrap();
    assert!(matches!(catalogue.show("p"), Err(CatalogueError::Missing { .. })));
    assert!(matches!(catalogue.delete("p"), Err(CatalogueError::Missing { .. })));
    assert_eq!(fs::read_dir(catalogue.root()).unwrap().count(), 1, "nothing is left behind");
}

#[test]
fn what_is_made_is_for_its_owner_alone_and_wider_modes_are_found() {
    use std::os::unix::fs::PermissionsExt as _;
    let outside = tempfile::tempdir().unwrap();
    let parent = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::open_or_create(parent.path().join("deep/volumes")).unwrap();
    catalogue.create(&VolumeSpec::sealed("s", 1 << 20)).unwrap();
    let medium = outside.path().join("medium");
    let spec = VolumeSpec { medium: Medium::File(medium.clone()), ..VolumeSpec::plain("p", 1 << 20) };
    catalogue.create(&spec).unwrap();
    drop(catalogue.lock(&VolumeName::new("p").unwrap()).unwrap());
    assert_eq!(catalogue.open_modes(), modes::OpenModes::default());
    assert_eq!(fs::metadata(parent.path().join("deep")).unwrap().mode() & 0o777, 0o700);
    let log = catalogue.root().join("s/store/log");
    let directory = catalogue.root().join("s");
    for (path, mode) in [(&log, 0o640), (&directory, 0o701), (&medium, 0o604)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let open = catalogue.open_modes();
    assert_eq!(open, modes::OpenModes { inside: vec![directory, log], outside: vec![medium] });
}

#[test]
fn the_store_agrees_with_the_description() {
    let (_dir, catalogue) = catalogue();
    let volume = catalogue.create(&VolumeSpec::sealed("s", 1 << 20)).unwrap();
    let info = Store::inspect(&catalogue.store_dir(&volume.name)).unwrap();
    volume.agrees_with(&info).unwrap();
    let other = catalogue.create(&VolumeSpec::sealed("t", 1 << 20)).unwrap();
    assert!(other.agrees_with(&info).unwrap_err().to_string().contains("volume_id"));
}

#[test]
fn names_and_sizes_that_cannot_be() {
    let (_dir, catalogue) = catalogue();
    let create = |spec: VolumeSpec| catalogue.create(&spec).unwrap_err();
    assert!(matches!(create(VolumeSpec::plain("../x", 4096)), CatalogueError::Name { .. }));
    let ragged = create(VolumeSpec::plain("x", 5000)).to_string();
    assert!(ragged.contains("4096 or 8192"), "{ragged}");
    assert!(matches!(create(VolumeSpec { block_size: 8192, ..VolumeSpec::plain("x", 8192) }), CatalogueError::Kind(_)));
    let target = |wrapping_key| SealedSpec { wrapping_key, ..SealedSpec::new(Custody::Target) };
    let spec = |wrapping_key| VolumeSpec { sealed: Some(target(wrapping_key)), ..VolumeSpec::plain("x", 1 << 20) };
    assert!(matches!(create(spec(None)), CatalogueError::Kind(_)));
    assert!(matches!(create(spec(Some(catalogue.root().join("key")))), CatalogueError::Kind(_)));
    let access = Access { initiators: vec!["*".into()], ..Access::default() };
    assert!(matches!(create(VolumeSpec { access, ..VolumeSpec::sealed("x", 1 << 20) }), CatalogueError::Kind(_)));
    assert_eq!(fs::read_dir(catalogue.root()).unwrap().count(), 0);
    catalogue.create(&VolumeSpec::plain("x", 4096 * 16)).unwrap();
    assert!(matches!(create(VolumeSpec::plain("x", 4096 * 16)), CatalogueError::Exists { .. }));
}

#[test]
fn a_volume_in_use_stays() {
    let (_dir, catalogue) = catalogue();
    let volume = catalogue.create(&VolumeSpec::plain("x", 1 << 20)).unwrap();
    let lock = catalogue.lock(&volume.name).unwrap();
    assert!(catalogue.show("x").unwrap().in_use);
    let error = catalogue.delete("x").unwrap_err();
    assert!(matches!(error, CatalogueError::InUse { .. }), "{error}");
    drop(lock);
    catalogue.delete("x").unwrap();
}

/// A log is as large as what was written to it, and nothing else finds it under that name.
#[test]
fn what_a_crash_left_of_making_or_deleting_goes() {
    let (dir, catalogue) = catalogue();
    let made = catalogue.create(&VolumeSpec::plain("p", 1 << 20)).unwrap();
    let (left, held) = (catalogue.unfinished(&made.name), catalogue.unfinished(&made.name));
    for unfinished in [&left, &held] {
        fs::create_dir_all(unfinished.join(STORE)).unwrap();
        fs::write(unfinished.join(STORE).join("log"), "a log").unwrap();
    }
    fs::create_dir(dir.path().join(".snapshots")).unwrap();
    let holding = unfinished::hold(&held).unwrap();
    catalogue.clear_unfinished().unwrap();
    assert!(!left.exists() && held.join(STORE).join("log").exists(), "somebody is at the other one");
    assert!(dir.path().join(".snapshots").exists() && catalogue.show("p").is_ok(), "what is no leftover stays");
    drop(holding);
    catalogue.clear_unfinished().unwrap();
    assert!(!held.exists());
    // One who creates or deletes a volume holds it.
    let clearing = |dir: &Path| {
        catalogue.clear_unfinished().unwrap();
        assert!(dir.exists(), "it is being made");
        catalogue.fill(dir, &made)
    };
    let other = describe(&VolumeSpec::plain("q", 1 << 20), catalogue.root()).unwrap();
    catalogue.place(&other, clearing).unwrap();
}

#[test]
fn a_broken_description_is_named_and_can_be_deleted() {
    let (_dir, catalogue) = catalogue();
    catalogue.create(&VolumeSpec::plain("x", 1 << 20)).unwrap();
    let path = catalogue.root().join("x").join(DESCRIPTION);
    fs::write(&path, "version = 1\n").unwrap();
    let error = catalogue.show("x").unwrap_err().to_string();
    assert!(error.contains("volume.toml") && error.contains("restore"), "{error}");
    assert!(catalogue.list().unwrap()[0].1.is_err());
    catalogue.delete("x").unwrap();
}

#[test]
fn a_description_under_another_name_is_refused() {
    let (_dir, catalogue) = catalogue();
    catalogue.create(&VolumeSpec::plain("x", 1 << 20)).unwrap();
    fs::rename(catalogue.root().join("x"), catalogue.root().join("y")).unwrap();
    assert!(matches!(catalogue.show("y"), Err(CatalogueError::Description { .. })));
}

#[test]
fn access_changes_in_place() {
    let (_dir, catalogue) = catalogue();
    catalogue.create(&VolumeSpec::plain("x", 1 << 20)).unwrap();
    let access = Access { peers: vec!["alice".into()], ..Access::default() };
    catalogue.set_access("x", access.clone()).unwrap();
    assert_eq!(catalogue.show("x").unwrap().volume.access, access);
}

#[test]
fn of_two_who_change_a_description_neither_is_lost() {
    const CHANGES: usize = 40;
    let (_dir, catalogue) = catalogue();
    let volume = catalogue.create(&VolumeSpec::plain("x", 1 << 20)).unwrap();
    let access = |at: usize| Access { peers: vec![format!("peer-{at}")], ..Access::default() };
    std::thread::scope(|scope| {
        scope.spawn(|| (0..CHANGES).for_each(|at| drop(catalogue.set_access("x", access(at)).unwrap())));
        // What a target does when snapshots are taken.
        (0..CHANGES).for_each(|at| {
            catalogue.change(&volume.name, |volume| volume.snapshots.push(format!("s-{at}"))).unwrap();
        });
    });
    let changed = catalogue.show("x").unwrap().volume;
    assert_eq!((changed.snapshots.len(), changed.access), (CHANGES, access(CHANGES - 1)));
    let names = fs::read_dir(catalogue.root().join("x")).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = names.filter(|name| name.to_string_lossy().starts_with(".volume.toml-")).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_root_that_is_not_there_says_so() {
    let dir = tempfile::tempdir().unwrap();
    assert!(Catalogue::open(dir.path().join("none")).is_err());
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(Catalogue::open(&file).is_err());
}

#[test]
fn a_log_elsewhere_is_made_found_and_removed() {
    let (_dir, catalogue) = catalogue();
    let elsewhere = tempfile::tempdir().unwrap();
    let path = elsewhere.path().join("x.log");
    let spec = |name: &str, medium| VolumeSpec { medium, ..VolumeSpec::plain(name, 1 << 20) };
    let among = catalogue.create(&spec("x", Medium::File(catalogue.root().join("log")))).unwrap_err();
    assert!(among.to_string().contains("among the volumes"), "{among}");
    let volume = catalogue.create(&spec("x", Medium::File(path.clone()))).unwrap();
    let status = catalogue.show("x").unwrap();
    assert!(
        status.host_bytes >= fs::metadata(&path).unwrap().len(),
        "all of its space is taken: {}",
        status.host_bytes
    );
    volume.agrees_with(&Store::inspect(&catalogue.store_dir(&volume.name)).unwrap()).unwrap();
    let again = catalogue.create(&spec("y", Medium::File(path.clone()))).unwrap_err();
    assert!(matches!(again, CatalogueError::Store { .. }), "{again}");
    assert!(path.exists(), "what is another volume's is not removed when making one fails");
    catalogue.delete("x").unwrap();
    assert!(!path.exists());
    catalogue.create(&spec("y", Medium::File(path))).unwrap();
    assert_eq!(catalogue.names().unwrap().len(), 1);
}

#[test]
fn a_volume_in_memory_has_no_store_on_the_host() {
    let (_dir, catalogue) = catalogue();
    let spec = VolumeSpec { medium: Medium::Memory, ..VolumeSpec::plain("m", 1 << 20) };
    let volume = catalogue.create(&spec).unwrap();
    assert!(!Store::exists(&catalogue.store_dir(&volume.name)));
    assert_eq!(catalogue.show("m").unwrap().volume.medium, Medium::Memory);
    catalogue.delete("m").unwrap();
}

/// Who destroys a wrapping key must know whose blocks go with it, under any name.
#[test]
fn a_wrapping_key_that_another_volume_has_is_shared() {
    let (_dir, catalogue) = catalogue();
    let keys = tempfile::tempdir().unwrap();
    let key = |name: &str| keys.path().join(name);
    for name in ["one", "two", "three"] {
        fs::write(key(name), name).unwrap();
    }
    fs::create_dir(key("deep")).unwrap();
    std::os::unix::fs::symlink(key("one"), key("link")).unwrap();
    let create = |name: &str, key: PathBuf| {
        let sealed = SealedSpec { wrapping_key: Some(key), ..SealedSpec::new(Custody::Target) };
        catalogue.create(&VolumeSpec { sealed: Some(sealed), ..VolumeSpec::plain(name, 1 << 20) }).unwrap()
    };
    let is_shared = |volume: &Volume| catalogue.wrapping_key_is_shared(volume).unwrap();
    let (first, other) = (create("first", key("one")), create("other", key("two")));
    let blind = catalogue.create(&VolumeSpec::sealed("blind", 1 << 20)).unwrap();
    for volume in [&first, &other, &blind] {
        assert!(!is_shared(volume), "{}", volume.name);
    }
    for path in [key("one"), key("deep/../one"), key("link")] {
        let second = create("second", path.clone());
        assert!(is_shared(&first) && is_shared(&second), "{}", path.display());
        assert!(!is_shared(&other));
        catalogue.delete("second").unwrap();
    }
    // A second name keeps the bytes that are destroyed under the first.
    let third = create("third", key("three"));
    fs::hard_link(key("three"), key("four")).unwrap();
    assert!(is_shared(&third) && !is_shared(&other));
    fs::remove_file(key("four")).unwrap();
    assert!(!is_shared(&third));
    // What is not there now cannot be told apart.
    fs::remove_file(key("three")).unwrap();
    assert!(is_shared(&third) && is_shared(&other));
    catalogue.delete("third").unwrap();
    assert!(!is_shared(&other));
    // One whose description cannot be read may name it too.
    fs::write(catalogue.root().join("blind").join(DESCRIPTION), "version = 1\n").unwrap();
    assert!(is_shared(&other));
}
