//! Every place where bytes from outside are decoded, by name: what `make fuzz` runs and `make test` replays.
//!
//! A target is a function of bytes that must return: no panic, no hang, no allocation beyond its room's named limits.

/// One decoder.
pub(crate) type Target = fn(&[u8]);

/// All of them.
pub(crate) const TARGETS: &[(&str, Target)] = &[
    ("record", record),
    ("key_file", key_file),
    ("iscsi_ahs", strongroom_iscsi::ahs::fuzz_ahs),
    ("iscsi_framer", strongroom_iscsi::framer::fuzz_framer),
    ("iscsi_text", strongroom_iscsi::text::fuzz_text),
    ("scsi", strongroom_scsi::fuzz_decode),
];

fn record(bytes: &[u8]) {
    use strongroom_block::{HoleRecord, SealRecord};
    if let Ok(record) = SealRecord::decode(bytes) {
        assert_eq!(record.as_bytes(), bytes);
    }
    if let Ok(hole) = HoleRecord::decode(bytes) {
        let mut encoded = Vec::new();
        hole.encode(&mut encoded);
        assert_eq!(encoded, bytes);
    }
}

fn key_file(bytes: &[u8]) {
    use strongroom_seal::VolumeKeyFile;
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(keys) = VolumeKeyFile::parse(text) {
        assert_eq!(VolumeKeyFile::parse(&keys.to_text()).as_ref(), Ok(&keys));
    }
}
