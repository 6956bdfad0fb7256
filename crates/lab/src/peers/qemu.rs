//! QEMU's block layer over iSCSI to tgt, as a virtual machine would use it: raw, and with its LUKS driver, which encrypts on
//! the initiator's side and authenticates nothing.
//!
//! `qemu-nbd` is QEMU's block layer in a process of its own; its NBD export on a Unix socket stands where the virtual
//! machine's disk would. That hop costs something too, which is why there is the raw one to compare with.

use super::serve::{Protocol, READY_TIMEOUT, Request, Served, TARGET_NAME, free_address};
use super::tgt;
use crate::programs::{program, run};
use crate::{Background, BenchError};

/// What LUKS may keep before the data.
const LUKS_HEADER_BYTES_MAX: u64 = 32 << 20;
/// How often to try to make one.
const LUKS_ATTEMPTS: u32 = 5;
/// Its key slot; no secret, and the quickest derivation: it is done once, before anything is measured.
const PASSPHRASE: &str = "secret,id=key,data=bench,format=raw";

/// Starts a tuned tgt, and QEMU's block layer in front of the initiator.
pub(super) fn start(request: &Request<'_>, luks: bool) -> Result<Served, BenchError> {
    let address = free_address()?;
    let more = if luks { LUKS_HEADER_BYTES_MAX } else { 0 };
    let larger = Request { bytes: request.bytes + more, ..*request };
    let mut served = tgt::start(&larger, address, true, &[])?;
    let Protocol::Iscsi { lun, .. } = served.protocol else { unreachable!("tgt speaks iSCSI") };
    if luks {
        // qemu-img measures the processor to choose the derivation's length, and gives up on one that is busy.
        let mut made = create_luks(&address, lun, request.bytes);
        for _ in 1..LUKS_ATTEMPTS {
            if made.is_ok() {
                break;
            }
            made = create_luks(&address, lun, request.bytes);
        }
        made?;
    }
    let iscsi = format!("driver=iscsi,transport=tcp,portal={address},target={TARGET_NAME},lun={lun}");
    let over = |prefix: &str| iscsi.split(',').map(|option| format!("{prefix}{option}")).collect::<Vec<_>>().join(",");
    let options = if luks {
        format!("driver=luks,key-secret=key,{}", over("file."))
    } else {
        format!("driver=raw,{}", over("file."))
    };
    let socket = request.directory.join("nbd");
    let mut nbd = program("qemu-nbd", &[]);
    nbd.args(["--persistent", "--shared=64", "--cache=none", "--socket"]).arg(&socket);
    nbd.args(["--object", PASSPHRASE, "--image-opts", &options]);
    let mut nbd = Background::start("qemu-nbd", nbd, request.initiator_cpus(), request.directory)?;
    nbd.wait_until(READY_TIMEOUT, |_| socket.exists().then_some(()))?;
    served.initiator_side.push(nbd);
    served.portal = socket.display().to_string();
    served.protocol = Protocol::Nbd { block_bytes: request.block_bytes };
    Ok(served)
}

/// Makes an empty LUKS volume on a unit of a target.
fn create_luks(address: &impl std::fmt::Display, lun: u16, bytes: u64) -> Result<(), BenchError> {
    let mut create = program("qemu-img", &[]);
    create.args(["create", "-q", "-f", "luks", "--object", PASSPHRASE]);
    create.args(["-o", "key-secret=key,iter-time=10,cipher-alg=aes-256,cipher-mode=xts,ivgen-alg=plain64"]);
    create.args([format!("iscsi://{address}/{TARGET_NAME}/{lun}"), bytes.to_string()]);
    run(create).map(drop)
}
