//! Mode pages: caching and control (SBC-3 §6.5.6, SPC-4 §7.5.10). WCE, D_SENSE and SWP can be changed, for all initiators together; nothing is
//! saved, so a unit that was reset or reopened has its defaults.

use strongroom_block::Geometry;

use crate::bytes::{be16, be32, be64};
use crate::sense::Sense;

/// The caching page.
pub const CACHING: u8 = 0x08;
/// The control page.
pub const CONTROL: u8 = 0x0a;
/// Every page.
pub const ALL: u8 = 0x3f;

const WCE: u8 = 0x04;
const D_SENSE: u8 = 0x04;
const SWP: u8 = 0x08;

/// What initiators can change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModeState {
    /// WCE: a write is durable only after SYNCHRONIZE CACHE or with FUA. Otherwise every write is.
    pub write_cache: bool,
    /// D_SENSE: sense is sent in descriptor format.
    pub descriptor_sense: bool,
    /// SWP: writes are refused.
    pub write_protect: bool,
}

impl Default for ModeState {
    fn default() -> ModeState {
        ModeState { write_cache: true, descriptor_sense: false, write_protect: false }
    }
}

impl ModeState {
    /// With every changeable bit set, and nothing else: the page control "changeable values".
    const CHANGEABLE: ModeState = ModeState { write_cache: true, descriptor_sense: true, write_protect: true };

    fn caching(self) -> [u8; 20] {
        let mut page = [0; 20];
        page[0] = CACHING;
        page[1] = 18;
        page[2] = if self.write_cache { WCE } else { 0 };
        page
    }

    /// Unrestricted reordering (QUEUE ALGORITHM MODIFIER 1): commands in flight together have no order.
    /// TAS: commands that another initiator ends are answered, with TASK ABORTED.
    fn control(self) -> [u8; 12] {
        let mut page = self.control_changeable();
        page[3] = 0x10;
        page[5] = 0x40;
        page
    }

    fn control_changeable(self) -> [u8; 12] {
        let mut page = [0; 12];
        page[0] = CONTROL;
        page[1] = 10;
        page[2] = if self.descriptor_sense { D_SENSE } else { 0 };
        page[4] = if self.write_protect { SWP } else { 0 };
        page
    }

    /// What MODE SELECT makes of it.
    ///
    /// # Errors
    /// The sense for a list that is torn, names a page that is not there, or changes what cannot be changed.
    pub fn select(self, ten: bool, list: &[u8], geometry: Geometry) -> Result<ModeState, Sense> {
        if list.is_empty() {
            return Ok(self);
        }
        let (header, descriptors, long) = match ten {
            true => (8, be16(list, 6).map(usize::from), list.get(4).is_some_and(|flags| flags & 1 != 0)),
            false => (4, list.get(3).map(|&len| usize::from(len)), false),
        };
        let descriptors = descriptors.ok_or(Sense::PARAMETER_LIST_LENGTH)?;
        let body = list.get(header..).ok_or(Sense::PARAMETER_LIST_LENGTH)?;
        let descriptor = body.get(..descriptors).ok_or(Sense::PARAMETER_LIST_LENGTH)?;
        check_descriptor(descriptor, long, geometry, header)?;
        let mut state = self;
        let mut at = header + descriptors;
        while at < list.len() {
            let [code, len, ..] = list[at..] else { return Err(Sense::PARAMETER_LIST_LENGTH) };
            let page = list.get(at..at + 2 + usize::from(len)).ok_or(Sense::PARAMETER_LIST_LENGTH)?;
            state = match code & 0x7f {
                CACHING => ModeState { write_cache: page.get(2).is_some_and(|flags| flags & WCE != 0), ..state },
                CONTROL => ModeState {
                    descriptor_sense: page.get(2).is_some_and(|flags| flags & D_SENSE != 0),
                    write_protect: page.get(4).is_some_and(|flags| flags & SWP != 0),
                    ..state
                },
                _ => return Err(Sense::INVALID_FIELD_IN_PARAMETERS.in_parameters(at as u16)),
            };
            // Everything but the changeable bits must be as it is (SPC-4 §6.11). PS is reserved here.
            let expected: &[u8] = if code & 0x7f == CACHING { &state.caching() } else { &state.control() };
            let differs = expected.iter().zip(page).skip(1).position(|(expected, sent)| expected != sent);
            if page.len() != expected.len() || differs.is_some() {
                let byte = at + 1 + differs.unwrap_or(0);
                return Err(Sense::INVALID_FIELD_IN_PARAMETERS.in_parameters(byte as u16));
            }
            at += page.len();
        }
        Ok(state)
    }
}

/// A block descriptor may only say what is so; zero blocks mean "as it is".
fn check_descriptor(descriptor: &[u8], long: bool, geometry: Geometry, at: usize) -> Result<(), Sense> {
    let said = match (descriptor.len(), long) {
        (0, _) => return Ok(()),
        (8, false) => be32(descriptor, 0).zip(be32(descriptor, 4).map(|bytes| bytes & 0x00ff_ffff)),
        (16, true) => {
            return match be64(descriptor, 0).zip(be32(descriptor, 12)) {
                Some((blocks, bytes))
                    if (blocks == 0 || blocks == geometry.blocks) && bytes == geometry.block_size.bytes() =>
                {
                    Ok(())
                }
                _ => Err(Sense::INVALID_FIELD_IN_PARAMETERS.in_parameters(at as u16)),
            };
        }
        _ => None,
    };
    let known = u32::try_from(geometry.blocks).unwrap_or(u32::MAX);
    match said {
        Some((blocks, bytes)) if (blocks == 0 || blocks == known) && bytes == geometry.block_size.bytes() => Ok(()),
        _ => Err(Sense::INVALID_FIELD_IN_PARAMETERS.in_parameters(at as u16)),
    }
}

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
    pub fn answer(&self, geometry: Geometry, read_only: bool, state: ModeState) -> Result<Vec<u8>, Sense> {
        if self.page_control == 3 {
            return Err(Sense::SAVING_NOT_SUPPORTED);
        }
        if self.subpage != 0 && self.subpage != 0xff {
            return Err(Sense::INVALID_FIELD_IN_CDB.in_cdb(3, None));
        }
        let (caching, control) = match self.page_control {
            0 => (state.caching(), state.control()),
            1 => (ModeState::CHANGEABLE.caching(), ModeState::CHANGEABLE.control_changeable()),
            _ => (ModeState::default().caching(), ModeState::default().control()),
        };
        let mut pages = Vec::new();
        if matches!(self.page, CACHING | ALL) {
            pages.extend_from_slice(&caching);
        }
        if matches!(self.page, CONTROL | ALL) {
            pages.extend_from_slice(&control);
        }
        if pages.is_empty() {
            return Err(Sense::INVALID_FIELD_IN_CDB.in_cdb(2, Some(5)));
        }
        let descriptor = self.block_descriptor(geometry);
        // Device-specific parameter: WP, and DPOFUA.
        let device = 0x10 | if read_only || state.write_protect { 0x80 } else { 0 };
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
        let data = ask(CACHING).answer(GEOMETRY, true, ModeState::default()).unwrap();
        assert_eq!(data[..12], [31, 0, 0x90, 8, 0, 0, 0x12, 0x34, 0, 0, 0x10, 0]);
        assert_eq!(data[12..15], [8, 18, 4]);
        assert_eq!(data.len(), 32);
        let parsed = ModePages::parse_6(&data).unwrap();
        assert_eq!(parsed, ModePages { write_protected: true, fua: true, write_cache: Some(true) });
    }

    #[test]
    fn golden_control_page() {
        let request = ModeSense { disable_block_descriptors: true, ..ask(CONTROL) };
        let data = request.answer(GEOMETRY, false, ModeState::default()).unwrap();
        assert_eq!(data, [15, 0, 0x10, 0, 10, 10, 0, 0x10, 0, 0x40, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn lengths_agree_in_every_form() {
        for ten in [false, true] {
            for (dbd, llbaa) in [(false, false), (true, false), (false, true), (true, true)] {
                let request =
                    ModeSense { ten, disable_block_descriptors: dbd, long_lba_accepted: ten && llbaa, ..ask(ALL) };
                let data = request.answer(GEOMETRY, false, ModeState::default()).unwrap();
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
    fn what_is_changeable_is_said_and_nothing_is_saved() {
        let changeable = ModeSense { page_control: 1, disable_block_descriptors: true, ..ask(ALL) };
        let data = changeable.answer(GEOMETRY, false, ModeState::default()).unwrap();
        assert_eq!(data[6..24], [&[WCE], &[0; 17][..]].concat());
        assert_eq!(data[26..36], [D_SENSE, 0, SWP, 0, 0, 0, 0, 0, 0, 0]);
        let saved = ModeSense { page_control: 3, ..ask(ALL) }.answer(GEOMETRY, false, ModeState::default());
        assert_eq!(saved, Err(Sense::SAVING_NOT_SUPPORTED));
        assert!(ask(0x1c).answer(GEOMETRY, false, ModeState::default()).is_err());
    }

    /// A MODE SELECT list of what MODE SENSE tells, with one byte changed.
    fn list(ten: bool, page: u8, change: impl Fn(&mut [u8])) -> Vec<u8> {
        let request = ModeSense { ten, ..ask(page) };
        let mut data = request.answer(GEOMETRY, false, ModeState::default()).unwrap();
        let header = if ten { 8 } else { 4 };
        data[..header - 1].fill(0);
        change(&mut data[header + 8..]);
        data
    }

    #[test]
    fn selecting_changes_what_can_be_changed_and_refuses_the_rest() {
        let before = ModeState::default();
        for ten in [false, true] {
            let select = |page, change: &dyn Fn(&mut [u8])| before.select(ten, &list(ten, page, change), GEOMETRY);
            assert_eq!(select(ALL, &|_| {}), Ok(before));
            assert_eq!(select(CACHING, &|page| page[2] = 0), Ok(ModeState { write_cache: false, ..before }));
            let protect = ModeState { write_protect: true, ..before };
            assert_eq!(select(CONTROL, &|page| page[4] = SWP), Ok(protect));
            let descriptors = ModeState { descriptor_sense: true, ..before };
            assert_eq!(select(CONTROL, &|page| page[2] = D_SENSE), Ok(descriptors));
            for at in [2, 3, 5, 8] {
                let refused = select(CONTROL, &|page| page[at] ^= 0x80).unwrap_err();
                assert!(refused.is(&Sense::INVALID_FIELD_IN_PARAMETERS), "byte {at}");
            }
            assert!(select(CONTROL, &|page| page[0] = 0x1c).is_err());
            let whole = list(ten, CONTROL, |_| {});
            for len in 1..whole.len() {
                // Up to the first page there is nothing to change, but something must be left whole.
                let header = if ten { 16 } else { 12 };
                assert_eq!(before.select(ten, &whole[..len], GEOMETRY).is_ok(), len == header, "{len}");
            }
            let mut resized = whole;
            resized[if ten { 11 } else { 7 }] ^= 1;
            assert!(before.select(ten, &resized, GEOMETRY).is_err(), "the geometry is not for initiators to change");
        }
        assert_eq!(before.select(false, &[], GEOMETRY), Ok(before));
    }
}
