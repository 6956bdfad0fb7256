//! Proves what the driver answers without its target: which requests it refuses, and what becomes of its socket.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};

use strongroom_csi::spec::volume_capability::access_mode::Mode;
use strongroom_csi::spec::{self, plugin_capability};
use strongroom_csi::{Driver, DriverError, Services};
use tonic::Code;

use crate::client::{Client, Lonely, blocks, bytes, call, files};

#[test]
fn it_says_who_it_is_and_that_its_target_is_away() {
    let lonely = Lonely::start();
    let client = lonely.client();
    let info = call!(client, identity.get_plugin_info(spec::GetPluginInfoRequest {})).unwrap();
    assert_eq!(info.name, "csi.strongroom.org");
    let all = call!(client, identity.get_plugin_capabilities(spec::GetPluginCapabilitiesRequest {})).unwrap();
    assert!(all.capabilities.iter().any(|one| matches!(one.r#type, Some(plugin_capability::Type::VolumeExpansion(_)))));
    let probe = call!(client, identity.probe(spec::ProbeRequest {})).unwrap_err();
    assert_eq!(probe.code(), Code::Unavailable, "{probe}");
    let node = call!(client, node.node_get_info(spec::NodeGetInfoRequest {})).unwrap();
    assert_eq!(node.node_id, "worker-1");
    assert_eq!(node.accessible_topology.unwrap().segments["topology.strongroom/target"], "here");
    drop(client);
    lonely.driver.stop().unwrap();
}

#[test]
fn a_controller_is_asked_for_what_can_be() {
    let lonely = Lonely::start();
    let client = lonely.client();
    let good = || spec::CreateVolumeRequest {
        name: "pvc-1".into(),
        volume_capabilities: vec![files("ext4", Mode::SingleNodeWriter)],
        capacity_range: bytes(1 << 30),
        ..Default::default()
    };
    let create =
        |request: spec::CreateVolumeRequest| call!(client, controller.create_volume(request)).unwrap_err().code();
    assert_eq!(create(good()), Code::Unavailable, "nothing is wrong with it but that the target is away");
    for wrong in [
        spec::CreateVolumeRequest { name: String::new(), ..good() },
        spec::CreateVolumeRequest { name: "n".repeat(129), ..good() },
        spec::CreateVolumeRequest { volume_capabilities: Vec::new(), ..good() },
        spec::CreateVolumeRequest { volume_capabilities: vec![files("", Mode::MultiNodeMultiWriter)], ..good() },
        spec::CreateVolumeRequest { parameters: [("encrypted".into(), "yes".into())].into(), ..good() },
        spec::CreateVolumeRequest { capacity_range: bytes(-1), ..good() },
    ] {
        assert_eq!(create(wrong), Code::InvalidArgument);
    }
    let shared = spec::CreateVolumeRequest { volume_capabilities: vec![blocks(Mode::MultiNodeMultiWriter)], ..good() };
    assert_eq!(create(shared), Code::Unavailable, "block devices may be shared");
    let publish = |node_id: &str, readonly| {
        let request = spec::ControllerPublishVolumeRequest {
            volume_id: "csi-a".into(),
            node_id: node_id.into(),
            readonly,
            volume_capability: Some(files("", Mode::SingleNodeWriter)),
            ..Default::default()
        };
        call!(client, controller.controller_publish_volume(request)).unwrap_err().code()
    };
    assert_eq!(publish("", false), Code::InvalidArgument);
    assert_eq!(publish("worker-1", true), Code::InvalidArgument);
    assert_eq!(publish("*", false), Code::NotFound, "that would be all peers");
    let capacity = call!(client, controller.get_capacity(spec::GetCapacityRequest::default())).unwrap_err();
    assert_eq!(capacity.code(), Code::Unimplemented, "a target does not tell operators how much room it has");
}

#[test]
fn a_node_is_asked_for_what_can_be() {
    let lonely = Lonely::start();
    let client = lonely.client();
    let path = |name: &str| lonely.dir.path().join(name).display().to_string();
    let good = || spec::NodeStageVolumeRequest {
        volume_id: "csi-a".into(),
        staging_target_path: path("staging"),
        volume_capability: Some(files("", Mode::SingleNodeWriter)),
        ..Default::default()
    };
    let stage = |request| call!(client, node.node_stage_volume(request)).unwrap_err();
    let no_key = stage(good());
    assert_eq!(no_key.code(), Code::InvalidArgument);
    assert!(no_key.message().contains("node-stage-secret-name"), "{no_key}");
    for (wrong, code) in [
        (spec::NodeStageVolumeRequest { volume_id: String::new(), ..good() }, Code::InvalidArgument),
        (spec::NodeStageVolumeRequest { volume_capability: None, ..good() }, Code::InvalidArgument),
        (spec::NodeStageVolumeRequest { staging_target_path: String::new(), ..good() }, Code::InvalidArgument),
        (
            spec::NodeStageVolumeRequest { volume_context: [("custody".into(), "keyserver".into())].into(), ..good() },
            Code::FailedPrecondition,
        ),
    ] {
        assert_eq!(stage(wrong).code(), code);
    }
    let publish = spec::NodePublishVolumeRequest {
        volume_id: "csi-a".into(),
        target_path: path("target"),
        volume_capability: Some(files("", Mode::SingleNodeWriter)),
        ..Default::default()
    };
    let unstaged = call!(client, node.node_publish_volume(publish.clone())).unwrap_err();
    assert_eq!(unstaged.code(), Code::FailedPrecondition);
    let read_only_device = spec::NodePublishVolumeRequest {
        staging_target_path: path("staging"),
        volume_capability: Some(blocks(Mode::SingleNodeWriter)),
        readonly: true,
        ..publish
    };
    let refused = call!(client, node.node_publish_volume(read_only_device)).unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "it would be writable all the same");
    // What is not there is undone already.
    let (volume_id, staging_target_path) = ("csi-a".to_owned(), path("staging"));
    let unstage = spec::NodeUnstageVolumeRequest { volume_id: volume_id.clone(), staging_target_path };
    call!(client, node.node_unstage_volume(unstage)).unwrap();
    let unpublish = spec::NodeUnpublishVolumeRequest { volume_id, target_path: path("target") };
    call!(client, node.node_unpublish_volume(unpublish)).unwrap();
}

#[test]
fn the_socket_is_private_and_a_stale_one_is_replaced() {
    let lonely = Lonely::start();
    let socket = lonely.dir.path().join("csi.sock");
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let mut options = Lonely::options(lonely.dir.path());
    options.services = Services::Controller;
    assert!(matches!(Driver::start(&options), Err(DriverError::InUse { .. })), "another one listens there");
    lonely.driver.stop().unwrap();
    assert!(!socket.exists());
    // As a driver that was killed leaves it.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let driver = Driver::start(&options).unwrap();
    let client = Client::connect(&socket);
    call!(client, identity.get_plugin_info(spec::GetPluginInfoRequest {})).unwrap();
    let node = call!(client, node.node_get_info(spec::NodeGetInfoRequest {})).unwrap_err();
    assert_eq!(node.code(), Code::Unimplemented, "a controller alone");
    drop(client);
    driver.stop().unwrap();
    fs::write(&socket, "not a socket").unwrap();
    assert!(matches!(Driver::start(&options), Err(DriverError::Socket { .. })));
    assert!(!fs::symlink_metadata(&socket).unwrap().file_type().is_socket());
}

#[test]
fn what_cannot_be_is_refused_at_the_start() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let good = Lonely::options(dir.path());
    let mut wrong = good.clone();
    wrong.node_id = None;
    assert!(Driver::start(&wrong).unwrap_err().to_string().contains("--node-id"));
    wrong = good.clone();
    wrong.target_name = "2001:db8::1".into();
    assert!(Driver::start(&wrong).unwrap_err().to_string().contains("--target-name"));
    wrong = good.clone();
    wrong.volume_prefix = "Much-too-long".into();
    assert!(Driver::start(&wrong).is_err());
    wrong = good;
    wrong.state_dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("state");
    let on_disk = Driver::start(&wrong).unwrap_err().to_string();
    fs::remove_dir_all(&wrong.state_dir).unwrap();
    assert!(on_disk.contains("tmpfs"), "{on_disk}");
}
