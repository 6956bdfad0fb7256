//! INQUIRY: standard data and the vital product data pages (SPC-4 §6.6 and §7.8, SBC-3 §6.6).

use strongroom_block::{BlockSize, VolumeId};

use crate::alua::TARGET_PORT_GROUP;
use crate::bytes::{be16, be32, be64};

/// T10 vendor identification: 8 ASCII characters.
pub const VENDOR: &[u8; 8] = b"STRNGRM ";
/// Product identification of a plain unit: 16 ASCII characters.
pub const PRODUCT_PLAIN: &[u8; 16] = b"PLAIN VOLUME    ";
/// Product identification of a sealed unit: 16 ASCII characters.
pub const PRODUCT_SEALED: &[u8; 16] = b"SEALED VOLUME   ";
/// Product revision: 4 ASCII characters.
pub const REVISION: &[u8; 4] = b"0001";

/// Supported vital product data pages.
pub const PAGE_SUPPORTED: u8 = 0x00;
/// Unit serial number.
pub const PAGE_SERIAL: u8 = 0x80;
/// Device identification.
pub const PAGE_IDENTIFICATION: u8 = 0x83;
/// Management network addresses.
pub const PAGE_MANAGEMENT: u8 = 0x85;
/// Extended INQUIRY data.
pub const PAGE_EXTENDED: u8 = 0x86;
/// Mode page policy.
pub const PAGE_MODE_POLICY: u8 = 0x87;
/// SCSI ports.
pub const PAGE_PORTS: u8 = 0x88;
/// Block limits.
pub const PAGE_BLOCK_LIMITS: u8 = 0xb0;
/// Block device characteristics.
pub const PAGE_CHARACTERISTICS: u8 = 0xb1;
/// Logical block provisioning.
pub const PAGE_PROVISIONING: u8 = 0xb2;

/// Standard INQUIRY data of a unit of ours.
pub fn standard(sealed: bool) -> Vec<u8> {
    let mut data = vec![0; 74];
    data[2] = 0x06; // SPC-4
    data[3] = 0x12; // HISUP, response data format 2
    data[4] = (data.len() - 5) as u8;
    // TPGS: implicit asymmetric access. 3PC: EXTENDED COPY, which a blind target cannot do.
    data[5] = 0x10 | if sealed { 0 } else { 0x08 };
    data[7] = 0x02; // CMDQUE
    data[8..16].copy_from_slice(VENDOR);
    data[16..32].copy_from_slice(if sealed { PRODUCT_SEALED } else { PRODUCT_PLAIN });
    data[32..36].copy_from_slice(REVISION);
    // Version descriptors (SPC-4 §6.6.2): SAM-5, iSCSI, SPC-4, SBC-3, each "no version claimed".
    for (index, descriptor) in [0x00a0u16, 0x0960, 0x0460, 0x04c0].into_iter().enumerate() {
        data[58 + 2 * index..60 + 2 * index].copy_from_slice(&descriptor.to_be_bytes());
    }
    data
}

/// Standard INQUIRY data for a LUN behind which there is nothing (SPC-4 §6.6.2: qualifier 011b, type 1Fh).
pub fn standard_absent() -> Vec<u8> {
    let mut data = standard(false);
    data[0] = 0x7f;
    data
}

/// Standard INQUIRY data of a well-known logical unit (type 1Eh).
pub fn standard_well_known() -> Vec<u8> {
    let mut data = standard(false);
    data[0] = 0x1e;
    data[5] = 0;
    data
}

/// What an initiator reads from standard INQUIRY data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StandardInquiry {
    /// Peripheral qualifier; 0 means that a unit is there.
    pub qualifier: u8,
    /// Peripheral device type; 0 is a direct access block device.
    pub device_type: u8,
    /// T10 vendor identification, trimmed.
    pub vendor: String,
    /// Product identification, trimmed.
    pub product: String,
    /// Product revision, trimmed.
    pub revision: String,
}

impl StandardInquiry {
    /// Reads it; `None` below 36 bytes.
    pub fn parse(data: &[u8]) -> Option<StandardInquiry> {
        let data = data.get(..36)?;
        Some(StandardInquiry {
            qualifier: data[0] >> 5,
            device_type: data[0] & 0x1f,
            vendor: ascii(&data[8..16]),
            product: ascii(&data[16..32]),
            revision: ascii(&data[32..36]),
        })
    }

    /// Whether a block device is there.
    pub fn is_block_device(&self) -> bool {
        (self.qualifier, self.device_type) == (0, 0)
    }
}

/// Text from a peer, for people: anything but printable ASCII becomes `?`.
fn ascii(bytes: &[u8]) -> String {
    let text: String =
        bytes.iter().map(|&byte| if (0x20..0x7f).contains(&byte) { char::from(byte) } else { '?' }).collect();
    text.trim().to_owned()
}

/// The page list, page 0x00. `pages` in ascending order.
pub fn supported_pages(pages: &[u8]) -> Vec<u8> {
    page(PAGE_SUPPORTED, pages)
}

/// Reads the page list.
pub fn parse_vpd_pages(data: &[u8]) -> Option<Vec<u8>> {
    body(data, PAGE_SUPPORTED).map(<[u8]>::to_vec)
}

/// Unit serial number, page 0x80: the volume id without hyphens.
pub fn serial(volume: VolumeId) -> Vec<u8> {
    page(PAGE_SERIAL, serial_text(volume).as_bytes())
}

/// Reads the unit serial number.
pub fn parse_serial(data: &[u8]) -> Option<String> {
    body(data, PAGE_SERIAL).map(ascii)
}

fn serial_text(volume: VolumeId) -> String {
    format!("{:032x}", u128::from_be_bytes(volume.0))
}

/// Locally assigned NAA (type 3h): stable, and ours to assign without an IEEE company id.
pub fn naa(volume: VolumeId) -> [u8; 8] {
    let mut naa: [u8; 8] = volume.0[..8].try_into().expect("8 of 16 bytes");
    naa[0] = 0x30 | naa[0] & 0x0f;
    naa
}

/// Whether a designator of this type names the logical unit: what EXTENDED COPY finds it by.
pub fn designates(volume: VolumeId, kind: u8, value: &[u8]) -> bool {
    match kind & 0x0f {
        3 => value == naa(volume),
        1 => value == vendor_designator(volume),
        0x0a => value == [&[0x10, 0], volume.0.as_slice()].concat(),
        _ => false,
    }
}

fn vendor_designator(volume: VolumeId) -> Vec<u8> {
    [VENDOR.as_slice(), serial_text(volume).as_bytes()].concat()
}

/// Device identification, page 0x83, of the unit of `target_name`, asked through the port `port` (a portal group's tag).
pub fn identification(volume: VolumeId, target_name: &str, port: u16) -> Vec<u8> {
    let mut list = Vec::new();
    designator(&mut list, 0x01, 0x00, 0x03, &naa(volume));
    // A logical unit, T10 vendor id: vendor, then the serial number.
    designator(&mut list, 0x02, 0x00, 0x01, &vendor_designator(volume));
    // A logical unit, UUID (SPC-5 §7.7.6.12).
    designator(&mut list, 0x01, 0x00, 0x0a, &[&[0x10, 0], volume.0.as_slice()].concat());
    // The unit as a SCSI name string (RFC 7143 does not name units; SPC-4 §7.8.6.11 does).
    designator(&mut list, 0x53, 0x00, 0x08, &name_string(&format!("{target_name},L,0x0000000000000000")));
    // The target port by name, by relative target port identifier, and by target port group.
    designator(&mut list, 0x53, 0x10, 0x08, &port_name(target_name, port));
    designator(&mut list, 0x51, 0x10, 0x04, &u32::from(port).to_be_bytes());
    designator(&mut list, 0x51, 0x10, 0x05, &u32::from(TARGET_PORT_GROUP).to_be_bytes());
    // The target device.
    designator(&mut list, 0x53, 0x20, 0x08, &name_string(target_name));
    page(PAGE_IDENTIFICATION, &list)
}

/// `protocol_and_set`: protocol identifier (5 is iSCSI) in the high, code set in the low four bits.
/// `association`: 0x00 logical unit, 0x10 target port, 0x20 target device.
fn designator(list: &mut Vec<u8>, protocol_and_set: u8, association: u8, kind: u8, value: &[u8]) {
    let protocol_valid = if protocol_and_set & 0xf0 == 0 { 0 } else { 0x80 };
    list.extend_from_slice(&[protocol_and_set, protocol_valid | association | kind, 0, value.len() as u8]);
    list.extend_from_slice(value);
}

/// The name of a target port (RFC 7143 §4.2.7.2).
fn port_name(target_name: &str, port: u16) -> Vec<u8> {
    name_string(&format!("{target_name},t,0x{port:04x}"))
}

/// SPC-4 §7.8.6.11: zero-terminated and zero-padded to a multiple of four bytes, at most 256.
fn name_string(name: &str) -> Vec<u8> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.truncate(251);
    bytes.push(0);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Block limits, page 0xb0. Zero means "no limit reported", or for UNMAP and COMPARE AND WRITE "not supported".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockLimits {
    /// WSNZ: WRITE SAME with a count of 0 is refused.
    pub write_same_nonzero: bool,
    /// Most blocks of a COMPARE AND WRITE.
    pub compare_and_write_blocks: u8,
    /// Blocks of an optimal transfer's granularity.
    pub granularity_blocks: u16,
    /// Most blocks of one READ, WRITE or VERIFY.
    pub transfer_blocks_max: u32,
    /// Blocks of an optimal transfer.
    pub transfer_blocks_optimal: u32,
    /// Most blocks of one UNMAP, over all descriptors.
    pub unmap_blocks_max: u32,
    /// Most descriptors of one UNMAP.
    pub unmap_descriptors_max: u32,
    /// Most blocks of one WRITE SAME.
    pub write_same_blocks_max: u64,
    /// Most blocks of one WRITE ATOMIC; 0: there is none. Any alignment and any number of blocks will do.
    pub atomic_blocks_max: u32,
}

impl BlockLimits {
    /// Encoded length with the page header, in bytes.
    pub const BYTES: usize = 64;

    /// The page.
    pub fn encode(&self) -> Vec<u8> {
        let mut data = vec![0; Self::BYTES];
        data[1] = PAGE_BLOCK_LIMITS;
        data[3] = (Self::BYTES - 4) as u8;
        data[4] = self.write_same_nonzero.into();
        data[5] = self.compare_and_write_blocks;
        data[6..8].copy_from_slice(&self.granularity_blocks.to_be_bytes());
        data[8..12].copy_from_slice(&self.transfer_blocks_max.to_be_bytes());
        data[12..16].copy_from_slice(&self.transfer_blocks_optimal.to_be_bytes());
        data[20..24].copy_from_slice(&self.unmap_blocks_max.to_be_bytes());
        data[24..28].copy_from_slice(&self.unmap_descriptors_max.to_be_bytes());
        // Optimal unmap granularity and alignment stay unreported: any block will do, and qemu 7.2 fails an assertion (its
        // allocation map asks for a range that is no multiple of 4096) when it is told a granularity of 4096 bytes.
        data[36..44].copy_from_slice(&self.write_same_blocks_max.to_be_bytes());
        data[44..48].copy_from_slice(&self.atomic_blocks_max.to_be_bytes());
        data
    }

    /// Reads it; fields that a short page lacks are zero.
    pub fn parse(data: &[u8]) -> Option<BlockLimits> {
        let body = body(data, PAGE_BLOCK_LIMITS)?;
        Some(BlockLimits {
            write_same_nonzero: body.first()? & 1 != 0,
            compare_and_write_blocks: *body.get(1)?,
            granularity_blocks: be16(body, 2)?,
            transfer_blocks_max: be32(body, 4)?,
            transfer_blocks_optimal: be32(body, 8)?,
            unmap_blocks_max: be32(body, 16).unwrap_or(0),
            unmap_descriptors_max: be32(body, 20).unwrap_or(0),
            write_same_blocks_max: be64(body, 32).unwrap_or(0),
            atomic_blocks_max: be32(body, 40).unwrap_or(0),
        })
    }
}

/// Extended INQUIRY data, page 0x86: simple, ordered and head-of-queue tasks, a volatile cache, and unit attentions that only
/// REPORT LUNS does not clear.
pub fn extended() -> Vec<u8> {
    let mut body = [0; 60];
    body[1] = 0x07; // HEADSUP, ORDSUP, SIMPSUP
    body[2] = 0x01; // V_SUP
    body[3] = 0x01; // LUICLR
    page(PAGE_EXTENDED, &body)
}

/// Mode page policy, page 0x87: one copy of every page, shared by all initiators.
pub fn mode_policy() -> Vec<u8> {
    page(PAGE_MODE_POLICY, &[0x3f, 0xff, 0x00, 0x00])
}

/// SCSI ports, page 0x88: every target port of the target, by its name.
pub fn ports(target_name: &str, ports: &[u16]) -> Vec<u8> {
    let mut body = Vec::new();
    for port in ports {
        let mut designators = Vec::new();
        designator(&mut designators, 0x53, 0x10, 0x08, &port_name(target_name, *port));
        let [high, low] = port.to_be_bytes();
        let [len_high, len_low] = (designators.len() as u16).to_be_bytes();
        // No initiator port of ours; then the target port's designators.
        body.extend_from_slice(&[0, 0, high, low, 0, 0, 0, 0, 0, 0, len_high, len_low]);
        body.extend_from_slice(&designators);
    }
    page(PAGE_PORTS, &body)
}

/// Longest address in page 0x85, in bytes.
pub const MANAGEMENT_URL_BYTES_MAX: usize = 255;

/// Management network addresses, page 0x85 (SPC-4 §7.8.8): one, of the storage configuration service of the target device.
pub fn management(url: &str) -> Vec<u8> {
    let mut address = url.as_bytes()[..url.len().min(MANAGEMENT_URL_BYTES_MAX)].to_vec();
    address.push(0);
    address.resize(address.len().next_multiple_of(4), 0);
    let [high, low] = (address.len() as u16).to_be_bytes();
    // ASSOCIATION 10b: the target device. SERVICE TYPE 01h: storage configuration.
    page(PAGE_MANAGEMENT, &[&[0x41, 0, high, low], address.as_slice()].concat())
}

/// Block device characteristics, page 0xb1: no rotating medium; what SANITIZE erased (`can_erase`) reads as zeros at once.
pub fn characteristics(can_erase: bool) -> Vec<u8> {
    let mut body = [0; 60];
    body[1] = 1; // MEDIUM ROTATION RATE: non-rotating
    if can_erase {
        body[3] = 0x40; // WABEREQ 01b
    }
    page(PAGE_CHARACTERISTICS, &body)
}

/// Blocks in one unit of a thin unit's resource counts (the log page of logical block provisioning), as a power of two: 1 MiB.
pub fn threshold_exponent(block_size: BlockSize) -> u8 {
    (20 - block_size.shift()) as u8
}

/// Logical block provisioning, page 0xb2, of a thin plain unit: UNMAP and WRITE SAME with UNMAP work, and unmapped blocks
/// read as zeros.
pub fn provisioning(block_size: BlockSize) -> Vec<u8> {
    // Threshold exponent; LBPU, LBPWS, LBPWS10, LBPRZ; provisioning type 2 (thin).
    page(PAGE_PROVISIONING, &[threshold_exponent(block_size), 0x80 | 0x40 | 0x20 | 0x04, 0x02, 0])
}

fn page(code: u8, body: &[u8]) -> Vec<u8> {
    let [high, low] = (body.len() as u16).to_be_bytes();
    let mut data = vec![0, code, high, low];
    data.extend_from_slice(body);
    data
}

/// The body of page `code`, as far as it was sent.
fn body(data: &[u8], code: u8) -> Option<&[u8]> {
    if *data.get(1)? != code {
        return None;
    }
    let len = usize::from(be16(data, 2)?);
    let sent = data.get(4..)?;
    Some(&sent[..len.min(sent.len())])
}

#[cfg(test)]
mod tests;
