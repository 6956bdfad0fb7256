//! Proves what hostile requests come to: nothing of what they want. Only root can send any to the socket; what is in them is from those who may
//! make objects of the orchestrator.

use std::fs;
use std::io::Write;
use std::sync::{Arc, Mutex};

use strongroom_csi::REQUEST_BYTES_MAX;
use strongroom_csi::spec::volume_capability::access_mode::Mode;
use strongroom_csi::spec::{self, NodeStageVolumeRequest};
use tonic::Code;
use tracing_subscriber::fmt::MakeWriter;

use crate::client::{Lonely, call, files};

const SECRET: &str = "strongroom-volume-key 2 epoch 1 c0ffee00c0ffee00";

/// What the driver has logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Log;

    fn make_writer(&'a self) -> Log {
        self.clone()
    }
}

fn stage(staging: &str) -> NodeStageVolumeRequest {
    NodeStageVolumeRequest {
        volume_id: "csi-a".into(),
        staging_target_path: staging.into(),
        volume_capability: Some(files("", Mode::SingleNodeWriter)),
        secrets: [("keyFile".to_owned(), SECRET.to_owned())].into(),
        ..Default::default()
    }
}

/// A secret reaches a command as a file that only root can read, and nothing else: no log of any level, no argument, no environment, no answer, no
/// file that stays.
#[test]
fn attack_csi_a_secret_in_logs() {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_writer(log.clone()).finish();
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let lonely = Lonely::start();
    let client = lonely.client();
    let staging = lonely.dir.path().join("staging").display().to_string();
    let answer = call!(client, node.node_stage_volume(stage(&staging))).unwrap_err();
    assert_eq!(answer.message(), "cannot prepare the volume: the recorder does nothing");
    assert_eq!(lonely.key_file(), format!("600\n{SECRET}"), "the command was given the key");
    assert!(lonely.recorded().contains("--key-file=") && !lonely.recorded().contains("c0ffee"));
    assert_eq!(fs::read_dir(lonely.dir.path().join("state/keys")).unwrap().count(), 0, "and the file is gone");
    // As the key of another volume would be logged.
    let mut in_context = stage(&staging);
    in_context.volume_context = [("custody".to_owned(), SECRET.to_owned())].into();
    assert_eq!(call!(client, node.node_stage_volume(in_context)).unwrap_err().code(), Code::InvalidArgument);
    assert!(!format!("{:?}", stage(&staging)).contains("c0ffee"), "nor does a request show it");
    drop(client);
    lonely.driver.stop().unwrap();
    let logged = String::from_utf8_lossy(&log.0.lock().unwrap()).into_owned();
    assert!(logged.contains("h2") || logged.contains("TRACE"), "the log is not empty");
    assert!(!logged.contains("c0ffee"), "{logged}");
}

#[test]
fn attack_csi_staging_path_that_is_a_link() {
    let lonely = Lonely::start();
    let client = lonely.client();
    let (elsewhere, link) = (lonely.dir.path().join("elsewhere"), lonely.dir.path().join("link"));
    fs::create_dir(&elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &link).unwrap();
    let link = link.display().to_string();
    let refused = call!(client, node.node_stage_volume(stage(&link))).unwrap_err();
    assert!(refused.code() == Code::InvalidArgument && refused.message().contains("symbolic link"), "{refused}");
    let publish = spec::NodePublishVolumeRequest {
        volume_id: "csi-a".into(),
        staging_target_path: elsewhere.display().to_string(),
        target_path: link.clone(),
        volume_capability: Some(files("", Mode::SingleNodeWriter)),
        ..Default::default()
    };
    assert_eq!(call!(client, node.node_publish_volume(publish)).unwrap_err().code(), Code::InvalidArgument);
    let unpublish = spec::NodeUnpublishVolumeRequest { volume_id: "csi-a".into(), target_path: link.clone() };
    assert_eq!(call!(client, node.node_unpublish_volume(unpublish)).unwrap_err().code(), Code::InvalidArgument);
    assert!(fs::symlink_metadata(&link).is_ok() && elsewhere.is_dir());
    assert_eq!(lonely.recorded(), "", "no command was run");
}

#[test]
fn attack_csi_volume_ids_that_lead_out_of_the_state_directory() {
    let lonely = Lonely::start();
    let client = lonely.client();
    let staging = lonely.dir.path().join("staging").display().to_string();
    for id in ["../../etc", "/etc", "a/b", "..", "--all", "a\u{202e}b"] {
        let mut request = stage(&staging);
        request.volume_id = id.into();
        assert_eq!(call!(client, node.node_stage_volume(request)).unwrap_err().code(), Code::NotFound, "{id}");
        let delete = spec::DeleteVolumeRequest { volume_id: id.into(), ..Default::default() };
        // There is none, and so it is deleted; the target, which is away, was not asked.
        call!(client, controller.delete_volume(delete)).unwrap();
    }
    assert_eq!(lonely.recorded(), "", "no command was run");
    assert!(!lonely.dir.path().join("state/volumes").exists());
}

#[test]
fn attack_csi_an_oversized_message() {
    let lonely = Lonely::start();
    let client = lonely.client();
    let request = spec::CreateVolumeRequest { name: "n".repeat(REQUEST_BYTES_MAX + 1), ..Default::default() };
    let refused = call!(client, controller.create_volume(request)).unwrap_err();
    assert_eq!(refused.code(), Code::OutOfRange, "{refused}");
    // It goes on, for this connection too.
    call!(client, identity.get_plugin_info(spec::GetPluginInfoRequest {})).unwrap();
}
