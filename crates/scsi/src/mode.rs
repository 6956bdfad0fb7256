//! Mode pages: caching and control (SBC-3 §6.5.6, SPC-4 §7.5.10). Nothing is changeable yet, nothing saved.

use strongroom_block::Geometry;

use crate::sense::Sense;

/// The caching page.
pub const CACHING: u8 = 0x08;
/// The control page.
pub const CONTROL: u8 = 0x0a;
/// Every page.
pub const ALL: u8 = 0x3f;

/// What the answer to a MODE SENSE depends on.
#[derive(Clone, Copy, Debug)]
pub struct ModeSense {
    /// The 10-byte form.
    pub ten: bool,
    /// DBD.
    pub disable_block_descriptors: bool,
    /// LLBAA (10-byte form only).
    pub long_lba_accepted: bool,
    /// PC: 0 current, 1 changeable, 2 default, 3 saved.
    pub page_control: u8,
    /// PAGE CODE.
    pub page: u8,
    /// SUBPAGE CODE.
    pub subpage: u8,
}

impl ModeSense {
    /// The parameter data of a unit that may (`read_only`) not be written by this nexus.
    ///
    /// # Errors
    /// The sense for a page that is not there, or for saved values.
    pub fn answer(&self, geometry: Geometry, read_only: bool) -> Result<Vec<u8>, Sense> {
        if self.page_control == 3 {
            return Err(Sense::SAVING_NOT_SUPPORTED);
        }
        if self.subpage != 0 && self.subpage != 0xff {
            return Err(Sense::INVALID_FIELD_IN_CDB.in_cdb(3, None));
        }
        let mut pages = Vec::new();
        if matches!(self.page, CACHING | ALL) {
            pages.extend_from_slice(&self.caching());
        }
        if matches!(self.page, CONTROL | ALL) {
            pages.extend_from_slice(&self.control());
        }
        if pages.is_empty() {
            return Err(Sense::INVALID_FIELD_IN_CDB.in_cdb(2, Some(5)));
        }
        let descriptor = self.block_descriptor(geometry);
        // Device-specific parameter: WP, and DPOFUA.
        let device = 0x10 | if read_only { 0x80 } else { 0 };
        let mut data = if self.ten {
            let len = (6 + descriptor.len() + pages.len()) as u16;
            let [high, low] = len.to_be_bytes();
            let long = u8::from(self.long_lba_accepted && !descriptor.is_empty());
            vec![high, low, 0, device, long, 0, 0, descriptor.len() as u8]
        } else {
            vec![(3 + descriptor.len() + pages.len()) as u8, 0, device, descriptor.len() as u8]
        };
        data.extend_from_slice(&descriptor);
        data.extend_from_slice(&pages);
        Ok(data)
    }

    fn block_descriptor(&self, geometry: Geometry) -> Vec<u8> {
        if self.disable_block_descriptors {
            return Vec::new();
        }
        if self.long_lba_accepted {
            let size = u64::from(geometry.block_size.bytes());
            return [geometry.blocks.to_be_bytes(), size.to_be_bytes()].concat();
        }
        let blocks = u32::try_from(geometry.blocks).unwrap_or(u32::MAX);
        [blocks.to_be_bytes(), geometry.block_size.bytes().to_be_bytes()].concat()
    }

    /// WCE: a write is durable only after SYNCHRONIZE CACHE or with FUA.
    fn caching(&self) -> [u8; 20] {
        let mut page = [0; 20];
        page[0] = CACHING;
        page[1] = 18;
        if self.page_control != 1 {
            page[2] = 0x04;
        }
        page
    }

    /// Unrestricted reordering (QUEUE ALGORITHM MODIFIER 1): commands in flight together have no order. Fixed-format sense.
    /// TAS: commands that another initiator ends are answered, with TASK ABORTED.
    fn control(&self) -> [u8; 12] {
        let mut page = [0; 12];
        page[0] = CONTROL;
        page[1] = 10;
        if self.page_control != 1 {
            page[3] = 0x10;
            page[5] = 0x40;
        }
        page
    }
}

/// What an initiator reads from MODE SENSE (6) data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModePages {
    /// WP: the unit may not be written by this nexus.
    pub write_protected: bool,
    /// DPOFUA: FUA is understood.
    pub fua: bool,
    /// WCE, if the caching page was sent.
    pub write_cache: Option<bool>,
}

impl ModePages {
    /// Reads the answer to [`crate::cdb::mode_sense_6`].
    pub fn parse_6(data: &[u8]) -> Option<ModePages> {
        let header = data.get(..4)?;
        let mut pages = data.get(4 + usize::from(header[3])..).unwrap_or(&[]);
        let mut write_cache = None;
        while let [code, len, ..] = *pages {
            let whole = 2 + usize::from(len);
            if code & 0x7f == CACHING {
                write_cache = pages.get(2).map(|flags| flags & 0x04 != 0);
            }
            pages = pages.get(whole..).unwrap_or(&[]);
        }
        Some(ModePages { write_protected: header[2] & 0x80 != 0, fua: header[2] & 0x10 != 0, write_cache })
    }
}

#[cfg(test)]
mod tests {
    use strongroom_block::BlockSize;

    use super::*;

    const GEOMETRY: Geometry = Geometry { block_size: BlockSize::DEFAULT, blocks: 0x1234 };

    fn ask(page: u8) -> ModeSense {
        ModeSense {
            ten: false,
            disable_block_descriptors: false,
            long_lba_accepted: false,
            page_control: 0,
            page,
            subpage: 0,
        }
    }

    #[test]
    fn golden_caching_page() {
        let data = ask(CACHING).answer(GEOMETRY, true).unwrap();
        assert_eq!(data[..12], [31, 0, 0x90, 8, 0, 0, 0x12, 0x34, 0, 0, 0x10, 0]);
        assert_eq!(data[12..15], [8, 18, 4]);
        assert_eq!(data.len(), 32);
        let parsed = ModePages::parse_6(&data).unwrap();
        assert_eq!(parsed, ModePages { write_protected: true, fua: true, write_cache: Some(true) });
    }

    #[test]
    fn golden_control_page() {
        let request = ModeSense { disable_block_descriptors: true, ..ask(CONTROL) };
        let data = request.answer(GEOMETRY, false).unwrap();
        assert_eq!(data, [15, 0, 0x10, 0, 10, 10, 0, 0x10, 0, 0x40, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn lengths_agree_in_every_form() {
        for ten in [false, true] {
            for (dbd, llbaa) in [(false, false), (true, false), (false, true), (true, true)] {
                let request =
                    ModeSense { ten, disable_block_descriptors: dbd, long_lba_accepted: ten && llbaa, ..ask(ALL) };
                let data = request.answer(GEOMETRY, false).unwrap();
                let said = if ten {
                    2 + usize::from(u16::from_be_bytes([data[0], data[1]]))
                } else {
                    1 + usize::from(data[0])
                };
                assert_eq!(said, data.len());
            }
        }
    }

    #[test]
    fn nothing_is_changeable_and_nothing_saved() {
        let changeable = ModeSense { page_control: 1, disable_block_descriptors: true, ..ask(ALL) };
        let data = changeable.answer(GEOMETRY, false).unwrap();
        assert_eq!(data[6..24], [0; 18]);
        assert_eq!(data[26..36], [0; 10]);
        let saved = ModeSense { page_control: 3, ..ask(ALL) }.answer(GEOMETRY, false);
        assert_eq!(saved, Err(Sense::SAVING_NOT_SUPPORTED));
        assert!(ask(0x1c).answer(GEOMETRY, false).is_err());
    }
}
