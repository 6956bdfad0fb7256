//! Every place where bytes from outside are decoded, by name: what `make fuzz` runs and `make test` replays.
//!
//! A target is a function of bytes that must return: no panic, no hang, no allocation beyond its room's named limits.

use std::time::Instant;

/// One decoder.
pub(crate) type Target = fn(&[u8]);

/// All of them.
pub(crate) const TARGETS: &[(&str, Target)] = &[
    ("record", record),
    ("key_file", key_file),
    ("node_key", node_key),
    ("invitation", invitation),
    ("shared_key", shared_key),
    ("key_protocol", strongroom_keyserver::fuzz_decode),
    ("key_server_files", strongroom_keyserver::fuzz_files),
    ("note", strongroom_seal::fuzz_note),
    ("channel", strongroom_channel::fuzz_decode),
    ("link", |bytes| strongroom_net::fuzz_link(bytes, Instant::now())),
    ("ecl_decode", strongroom_ecl::fuzz::fuzz_decode),
    ("ecl_target", |bytes| strongroom_ecl::fuzz::fuzz_target(Instant::now(), bytes)),
    ("ecl_initiator", |bytes| strongroom_ecl::fuzz::fuzz_initiator(Instant::now(), bytes)),
    ("iscsi_ahs", strongroom_iscsi::ahs::fuzz_ahs),
    ("iscsi_framer", strongroom_iscsi::framer::fuzz_framer),
    ("iscsi_text", strongroom_iscsi::text::fuzz_text),
    ("iscsi_target", |bytes| strongroom_iscsi::fuzz::fuzz_target(Instant::now(), bytes)),
    ("iscsi_chap", strongroom_iscsi::chap::fuzz_chap),
    ("iscsi_sequences", |bytes| strongroom_iscsi::fuzz::fuzz_sequences(Instant::now(), bytes)),
    ("iscsi_connections", |bytes| strongroom_iscsi::fuzz::fuzz_connections(Instant::now(), bytes)),
    ("iscsi_initiator", |bytes| strongroom_iscsi::fuzz::fuzz_initiator(Instant::now(), bytes)),
    ("metrics_request", strongroom_metrics::fuzz_request),
    ("nbd_server", strongroom_nbd::fuzz::fuzz_server),
    ("scsi", strongroom_scsi::fuzz_decode),
    ("vhost_guest", strongroom_initiator::front::vhost::fuzz_guest),
    ("store_unit", strongroom_store::fuzz::fuzz_unit),
    ("store_superblock", strongroom_store::fuzz::fuzz_superblock),
    ("store_catalogue", strongroom_store::fuzz::fuzz_catalogue),
    ("store_operations", strongroom_store::fuzz::fuzz_operations),
    ("store_checkpoint", strongroom_store::fuzz::fuzz_checkpoint),
    ("store_stream", strongroom_store::fuzz_stream),
    ("transfer", strongroom_target::transfers::fuzz_message),
    ("operator", strongroom_target::operators::fuzz_request),
    ("pairing", strongroom_target::pairing::fuzz_message),
    ("peer_database", strongroom_target::pairing::fuzz_database),
    ("store_image", strongroom_store::fuzz::fuzz_image),
    ("store_use", strongroom_store::fuzz::fuzz_use),
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

fn node_key(bytes: &[u8]) {
    use strongroom_handshake::{NodeKey, PublicKey};
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(key) = text.parse::<PublicKey>() {
        assert_eq!(key.to_string().parse::<PublicKey>(), Ok(key));
    }
    if let Ok(key) = NodeKey::parse(text) {
        assert_eq!(NodeKey::parse(&key.to_text()).map(|again| again.public()), Ok(key.public()));
    }
}

fn invitation(bytes: &[u8]) {
    use strongroom_handshake::Invitation;
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(read) = Invitation::parse(text) {
        let again = Invitation::parse(&read.to_text()).expect("what is written can be read");
        assert_eq!((again.expires_at, again.addresses), (read.expires_at, read.addresses));
    }
}

fn shared_key(bytes: &[u8]) {
    use strongroom_handshake::{NodeKey, SharedKey};
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(read) = SharedKey::parse(text) {
        assert_eq!(SharedKey::parse(&read.to_text()).as_ref(), Ok(&read));
        let _ = read.open(&NodeKey::from_seed(&[2; 32]), Some(read.sender()));
    }
}
