//! Proves the driver with everything real: a target, a controller and two nodes as processes, attachments, loop devices, ext4 and XFS. Run by
//! `make test-csi`, which says in STRONGROOM_PROGRAM what is tested; as root. Elsewhere these tests are skipped. `make test-package` runs one of them
//! in a virtual machine, with STRONGROOM_HOST_PROGRAM: attachments are services of its systemd there, as on a node of Kubernetes.

use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use strongroom_csi::spec::volume_capability::access_mode::Mode;
use strongroom_csi::spec::{self, Volume, VolumeCapability};
use tonic::{Code, Status};

use crate::client::{Client, blocks, bytes, call, files};

const MIB: i64 = 1 << 20;
/// Nothing here takes so long unless it hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// A process that ends with the test.
struct Process(Child);

impl Process {
    fn stop(&mut self, signal: &str) {
        let _ = Command::new("kill").arg(signal).arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop("-9");
    }
}

/// A target, a controller, and nodes.
struct Cluster {
    program: PathBuf,
    dir: tempfile::TempDir,
    port: u16,
    target_line: String,
    key: String,
    processes: Vec<Process>,
}

impl Cluster {
    fn start() -> Option<Cluster> {
        let Some(program) = std::env::var_os("STRONGROOM_PROGRAM").map(PathBuf::from) else {
            eprintln!("passed over: `make test-csi` runs this");
            return None;
        };
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let (target_line, key) = (String::new(), String::new());
        let mut cluster = Cluster { program, dir, port, target_line, key, processes: Vec::new() };
        cluster.serve();
        cluster.key = {
            let file = cluster.path("volume.key");
            cluster.run(&["key", "new", "--out", &file]);
            fs::read_to_string(file).unwrap()
        };
        for node in ["worker-1", "worker-2"] {
            cluster.drive(node, "node");
        }
        cluster.drive("controller", "controller");
        Some(cluster)
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    fn run(&self, arguments: &[&str]) -> String {
        let output = Command::new(&self.program).args(arguments).env("HOME", self.dir.path()).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn identity(&self, name: &str) -> String {
        let file = self.path(&format!("{name}.identity"));
        self.run(&["identity", "new", "--out", &file]);
        self.run(&["identity", "show", &file]).trim().to_owned()
    }

    fn serve(&mut self) {
        fs::create_dir(self.path("volumes")).unwrap();
        self.target_line = self.identity("target");
        let peers =
            [("controller", "operator"), ("worker-1", "initiator"), ("worker-2", "initiator")].map(|(name, role)| {
                let key = self.identity(name);
                format!("[[peer]]\nname = \"{name}\"\nkey = \"{key}\"\nvolumes = []\nrole = \"{role}\"\n")
            });
        let config = self.path("target.toml");
        let text = format!(
            "root = \"{}\"\nlisten = [\"127.0.0.1:{}\"]\nnode_key = \"{}\"\n{}",
            self.path("volumes"),
            self.port,
            self.path("target.identity"),
            peers.concat()
        );
        fs::write(&config, text).unwrap();
        self.spawn("target", &["serve", "--config", &config]);
        let until = Instant::now() + PATIENCE;
        while std::net::TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(Instant::now() < until, "{}", self.log("target"));
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn spawn(&mut self, name: &str, arguments: &[&str]) {
        let log = File::options().append(true).create(true).open(self.path(&format!("{name}.log"))).unwrap();
        let mut command = Command::new(&self.program);
        command.args(arguments).env("HOME", self.dir.path().join(name)).stdin(Stdio::null());
        command.stdout(log.try_clone().unwrap()).stderr(log);
        self.processes.push(Process(command.spawn().unwrap()));
    }

    fn log(&self, name: &str) -> String {
        fs::read_to_string(self.path(&format!("{name}.log"))).unwrap_or_default()
    }

    /// Starts a driver.
    fn drive(&mut self, name: &str, services: &str) {
        let endpoint = format!("unix://{}", self.path(&format!("{name}.sock")));
        let (target, identity) = (format!("127.0.0.1:{}", self.port), self.path(&format!("{name}.identity")));
        let (state, key) = (self.path(&format!("{name}.state")), self.target_line.clone());
        let arguments = [
            &["csi", "--services", services, "--endpoint", &endpoint, "--target", &target][..],
            &["--target-key", &key, "--target-name", "here", "--identity", &identity],
            &["--node-id", name, "--state-dir", &state],
        ]
        .concat();
        let host_program = std::env::var("STRONGROOM_HOST_PROGRAM").ok().filter(|_| services == "node");
        let on_the_host = host_program.as_deref().map_or(Vec::new(), |program| vec!["--host-program", program]);
        self.spawn(name, &[arguments, on_the_host].concat());
        let (socket, until) = (self.path(&format!("{name}.sock")), Instant::now() + PATIENCE);
        while std::os::unix::net::UnixStream::connect(&socket).is_err() {
            assert!(Instant::now() < until, "{}", self.log(name));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn client(&self, name: &str) -> Client {
        Client::connect(Path::new(&self.path(&format!("{name}.sock"))))
    }

    fn node<'a>(&'a self, name: &'a str) -> Node<'a> {
        Node { cluster: self, name, client: self.client(name) }
    }

    fn create(&self, name: &str, capability: VolumeCapability, from: Option<spec::VolumeContentSource>) -> Volume {
        let request = spec::CreateVolumeRequest {
            name: name.into(),
            capacity_range: bytes(if from.is_some() { 0 } else { 320 * MIB }),
            volume_capabilities: vec![capability],
            volume_content_source: from,
            ..Default::default()
        };
        call!(self.client("controller"), controller.create_volume(request)).unwrap().volume.unwrap()
    }

    fn publish(&self, volume: &Volume, node: &str, capability: VolumeCapability) -> Result<(), Status> {
        let request = spec::ControllerPublishVolumeRequest {
            volume_id: volume.volume_id.clone(),
            node_id: node.into(),
            volume_capability: Some(capability),
            ..Default::default()
        };
        call!(self.client("controller"), controller.controller_publish_volume(request)).map(drop)
    }

    fn unpublish(&self, volume: &Volume, node: &str) {
        let (volume_id, node_id) = (volume.volume_id.clone(), node.to_owned());
        let request = spec::ControllerUnpublishVolumeRequest { volume_id, node_id, ..Default::default() };
        call!(self.client("controller"), controller.controller_unpublish_volume(request)).unwrap();
    }

    fn expand(&self, volume: &Volume, size: i64) -> Result<(), Status> {
        let (volume_id, capacity_range) = (volume.volume_id.clone(), bytes(size));
        let request = spec::ControllerExpandVolumeRequest { volume_id, capacity_range, ..Default::default() };
        call!(self.client("controller"), controller.controller_expand_volume(request)).map(drop)
    }

    fn delete(&self, volume: &Volume) -> Result<(), Status> {
        let request = spec::DeleteVolumeRequest { volume_id: volume.volume_id.clone(), ..Default::default() };
        call!(self.client("controller"), controller.delete_volume(request)).map(drop)
    }

    fn snapshot(&self, name: &str, volume: &Volume) -> spec::Snapshot {
        let (name, source_volume_id) = (name.to_owned(), volume.volume_id.clone());
        let request = spec::CreateSnapshotRequest { name, source_volume_id, ..Default::default() };
        call!(self.client("controller"), controller.create_snapshot(request)).unwrap().snapshot.unwrap()
    }
}

/// A node of the cluster.
struct Node<'a> {
    cluster: &'a Cluster,
    name: &'a str,
    client: Client,
}

impl Node<'_> {
    fn staging(&self, volume: &Volume) -> String {
        self.cluster.path(&format!("{}-staging-{}", self.name, volume.volume_id))
    }

    fn target(&self, volume: &Volume) -> String {
        self.cluster.path(&format!("{}-target-{}", self.name, volume.volume_id))
    }

    fn stage(&self, volume: &Volume, capability: VolumeCapability) -> Result<(), Status> {
        let request = spec::NodeStageVolumeRequest {
            volume_id: volume.volume_id.clone(),
            staging_target_path: self.staging(volume),
            volume_capability: Some(capability),
            secrets: [("keyFile".to_owned(), self.cluster.key.clone())].into(),
            volume_context: volume.volume_context.clone(),
            ..Default::default()
        };
        call!(self.client, node.node_stage_volume(request)).map(drop)
    }

    fn publish(&self, volume: &Volume, capability: VolumeCapability, readonly: bool) -> Result<PathBuf, Status> {
        let request = spec::NodePublishVolumeRequest {
            volume_id: volume.volume_id.clone(),
            staging_target_path: self.staging(volume),
            target_path: self.target(volume),
            volume_capability: Some(capability),
            readonly,
            ..Default::default()
        };
        call!(self.client, node.node_publish_volume(request))?;
        Ok(self.target(volume).into())
    }

    /// All that a pod needs.
    fn up(&self, volume: &Volume, capability: &VolumeCapability) -> PathBuf {
        self.cluster.publish(volume, self.name, capability.clone()).unwrap();
        self.stage(volume, capability.clone()).unwrap();
        self.publish(volume, capability.clone(), false).unwrap()
    }

    fn down(&self, volume: &Volume) {
        let (volume_id, target_path) = (volume.volume_id.clone(), self.target(volume));
        call!(self.client, node.node_unpublish_volume(spec::NodeUnpublishVolumeRequest { volume_id, target_path }))
            .unwrap();
        self.unstage(volume).unwrap();
        self.cluster.unpublish(volume, self.name);
    }

    fn unstage(&self, volume: &Volume) -> Result<(), Status> {
        let (volume_id, staging_target_path) = (volume.volume_id.clone(), self.staging(volume));
        let request = spec::NodeUnstageVolumeRequest { volume_id, staging_target_path };
        call!(self.client, node.node_unstage_volume(request)).map(drop)
    }

    fn expand(&self, volume: &Volume, size: i64) {
        let request = spec::NodeExpandVolumeRequest {
            volume_id: volume.volume_id.clone(),
            volume_path: self.target(volume),
            capacity_range: bytes(size),
            ..Default::default()
        };
        assert_eq!(call!(self.client, node.node_expand_volume(request)).unwrap().capacity_bytes, size);
    }

    fn total_bytes(&self, volume: &Volume) -> i64 {
        let request = spec::NodeGetVolumeStatsRequest {
            volume_id: volume.volume_id.clone(),
            volume_path: self.target(volume),
            ..Default::default()
        };
        call!(self.client, node.node_get_volume_stats(request)).unwrap().usage[0].total
    }
}

fn write(at: &Path, text: &str) {
    let mut file = File::create(at).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file.sync_all().unwrap();
}

fn from_snapshot(snapshot: &spec::Snapshot) -> Option<spec::VolumeContentSource> {
    use spec::volume_content_source::{SnapshotSource, Type};
    let source = SnapshotSource { snapshot_id: snapshot.snapshot_id.clone() };
    Some(spec::VolumeContentSource { r#type: Some(Type::Snapshot(source)) })
}

fn from_volume(volume: &Volume) -> Option<spec::VolumeContentSource> {
    use spec::volume_content_source::{Type, VolumeSource};
    let source = VolumeSource { volume_id: volume.volume_id.clone() };
    Some(spec::VolumeContentSource { r#type: Some(Type::Volume(source)) })
}

/// The kernel asks for this capability, which some containers do not have.
fn may_enlarge_ext4() -> bool {
    const CAP_SYS_RESOURCE: u32 = 24;
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap().trim().to_owned();
    u64::from_str_radix(&effective, 16).unwrap() >> CAP_SYS_RESOURCE & 1 == 1
}

fn grows_in_use_and_out_of_use(cluster: &Cluster, volume: &Volume, capability: &VolumeCapability) {
    let node = cluster.node("worker-1");
    let small = node.total_bytes(volume);
    cluster.expand(volume, 512 * MIB).unwrap();
    node.expand(volume, 512 * MIB);
    let larger = node.total_bytes(volume);
    assert!(larger > small + 150 * MIB, "{small} {larger}");
    node.down(volume);
    // Nobody uses it, so nobody seals what it grows by until it is staged again.
    cluster.expand(volume, 768 * MIB).unwrap();
    node.up(volume, capability);
    node.expand(volume, 768 * MIB);
    assert!(node.total_bytes(volume) > larger + 200 * MIB);
}

/// A file system lives through a restart of the driver, grows in use and out of use, and its snapshot and clones have what was in it, beside it on
/// the same node.
fn file_system_lives(fs_type: &str) {
    let Some(mut cluster) = Cluster::start() else { return };
    let capability = files(fs_type, Mode::SingleNodeWriter);
    let volume = cluster.create("pvc-1", capability.clone(), None);
    let node = cluster.node("worker-1");
    let target = node.up(&volume, &capability);
    write(&target.join("a"), "before");
    drop(node);

    // The driver is killed; pods go on, and the next driver knows what there is.
    cluster.processes[1].stop("-9");
    write(&target.join("b"), "while it was away");
    cluster.drive("worker-1", "node");
    let node = cluster.node("worker-1");
    node.stage(&volume, capability.clone()).unwrap();
    node.publish(&volume, capability.clone(), false).unwrap();
    let other_way = node.publish(&volume, capability.clone(), true).unwrap_err();
    assert_eq!(other_way.code(), Code::AlreadyExists);

    let snapshot = cluster.snapshot("snap-1", &volume);
    write(&target.join("a"), "after");
    let restored = cluster.create("pvc-2", capability.clone(), from_snapshot(&snapshot));
    let clone = cluster.create("pvc-3", capability.clone(), from_volume(&volume));
    assert_eq!(fs::read_to_string(node.up(&restored, &capability).join("a")).unwrap(), "before");
    let cloned = node.up(&clone, &capability);
    assert_eq!(fs::read_to_string(cloned.join("a")).unwrap(), "after");
    write(&cloned.join("a"), "of the clone");
    assert_eq!(fs::read_to_string(target.join("a")).unwrap(), "after");
    assert_eq!(
        cluster.expand(&clone, 1 << 30).unwrap_err().code(),
        Code::FailedPrecondition,
        "it has its source's size"
    );
    // Nothing goes while something depends on it.
    assert_eq!(cluster.delete(&volume).unwrap_err().code(), Code::FailedPrecondition);
    for one in [&restored, &clone] {
        node.down(one);
        cluster.delete(one).unwrap();
    }
    let request = spec::DeleteSnapshotRequest { snapshot_id: snapshot.snapshot_id, ..Default::default() };
    call!(cluster.client("controller"), controller.delete_snapshot(request)).unwrap();

    if fs_type != "ext4" || may_enlarge_ext4() {
        grows_in_use_and_out_of_use(&cluster, &volume, &capability);
    } else {
        eprintln!("passed over: this machine lets nobody enlarge a mounted ext4 (CAP_SYS_RESOURCE)");
    }
    assert_eq!(fs::read_to_string(target.join("b")).unwrap(), "while it was away");
    fs::write(target.join("c"), vec![7; 32 << 20]).unwrap();
    node.down(&volume);
    cluster.delete(&volume).unwrap();
    let left =
        call!(cluster.client("controller"), controller.list_volumes(spec::ListVolumesRequest::default())).unwrap();
    assert!(left.entries.is_empty());
    assert!(!cluster.run(&["attach", "list"]).contains(&cluster.port.to_string()));
}

#[test]
fn ext4_lives_through_all_of_it() {
    file_system_lives("ext4");
}

#[test]
fn xfs_lives_through_all_of_it() {
    file_system_lives("xfs");
}

#[test]
fn a_node_that_a_volume_is_taken_from_writes_nothing_more() {
    let Some(cluster) = Cluster::start() else { return };
    let capability = files("ext4", Mode::SingleNodeWriter);
    let volume = cluster.create("pvc-1", capability.clone(), None);
    let (lost, next) = (cluster.node("worker-1"), cluster.node("worker-2"));
    let unpublished = lost.stage(&volume, capability.clone()).unwrap_err();
    assert_eq!(unpublished.code(), Code::PermissionDenied, "{unpublished}");
    let target = lost.up(&volume, &capability);
    write(&target.join("a"), "of the first node");
    let refused = cluster.publish(&volume, "worker-2", capability.clone()).unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("worker-1"), "{refused}");
    let unknown = cluster.publish(&volume, "worker-3", files("", Mode::MultiNodeReaderOnly)).unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);
    // As when a node is cut off: nobody asks it.
    cluster.unpublish(&volume, "worker-1");
    let there = next.up(&volume, &capability);
    assert_eq!(fs::read_to_string(there.join("a")).unwrap(), "of the first node");
    write(&there.join("a"), "of the second node");
    let _ = fs::write(target.join("b"), "too late");
    next.down(&volume);
    let forced = Command::new(&cluster.program).args(["detach", "--force", &lost.staging(&volume)]).output().unwrap();
    assert_eq!(forced.status.code(), Some(3), "it says that what was written last is lost");
    let again = cluster.node("worker-2");
    let there = again.up(&volume, &capability);
    assert_eq!(fs::read_to_string(there.join("a")).unwrap(), "of the second node");
    assert!(!there.join("b").exists(), "nothing of the node that lost it");
    again.down(&volume);
    cluster.delete(&volume).unwrap();
}

#[test]
fn a_block_device_is_shown_shared_and_grown() {
    let Some(cluster) = Cluster::start() else { return };
    let alone = blocks(Mode::SingleNodeWriter);
    let volume = cluster.create("pvc-1", alone.clone(), None);
    let node = cluster.node("worker-1");
    let device = node.up(&volume, &alone);
    let mut file = File::options().read(true).write(true).open(&device).unwrap();
    file.seek(SeekFrom::Start(8192)).unwrap();
    file.write_all(&[5; 4096]).unwrap();
    file.sync_all().unwrap();
    drop(file);
    cluster.expand(&volume, 512 * MIB).unwrap();
    node.expand(&volume, 512 * MIB);
    assert_eq!(node.total_bytes(&volume), 512 * MIB);
    assert_eq!(File::open(&device).unwrap().seek(SeekFrom::End(0)).unwrap() as i64, 512 * MIB);
    // Another node wants it for itself.
    let shared = blocks(Mode::MultiNodeMultiWriter);
    cluster.publish(&volume, "worker-2", shared.clone()).unwrap();
    let other = cluster.node("worker-2");
    let refused = other.stage(&volume, alone.clone()).unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert!(refused.message().contains("Detach it there"), "{refused}");
    node.down(&volume);
    // Or both share it.
    let (here, there) = (node.up(&volume, &shared), other.up(&volume, &shared));
    let mut read = [0; 4096];
    let mut file = File::open(&there).unwrap();
    file.seek(SeekFrom::Start(8192)).unwrap();
    file.read_exact(&mut read).unwrap();
    assert_eq!(read, [5; 4096]);
    drop(file);
    assert!(here.exists());
    node.down(&volume);
    other.down(&volume);
    cluster.delete(&volume).unwrap();
}

#[test]
fn one_pod_alone_and_readers() {
    let Some(cluster) = Cluster::start() else { return };
    let alone = files("ext4", Mode::SingleNodeSingleWriter);
    let volume = cluster.create("pvc-1", alone.clone(), None);
    let node = cluster.node("worker-1");
    let target = node.up(&volume, &alone);
    write(&target.join("a"), "text");
    let second = spec::NodePublishVolumeRequest {
        volume_id: volume.volume_id.clone(),
        staging_target_path: node.staging(&volume),
        target_path: cluster.path("second"),
        volume_capability: Some(alone.clone()),
        ..Default::default()
    };
    let refused = call!(node.client, node.node_publish_volume(second)).unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    node.down(&volume);
    let readers = files("ext4", Mode::MultiNodeReaderOnly);
    for name in ["worker-1", "worker-2"] {
        let node = cluster.node(name);
        let target = node.up(&volume, &readers);
        assert_eq!(fs::read_to_string(target.join("a")).unwrap(), "text");
        assert!(fs::write(target.join("b"), "text").is_err());
    }
    for name in ["worker-1", "worker-2"] {
        cluster.node(name).down(&volume);
    }
    cluster.delete(&volume).unwrap();
}
