-- Strongroom's ECL for Wireshark and tshark: what of a packet is in the clear (docs/ecl.md, "What a packet is").
--
--   tshark -X lua_script:strongroom-ecl.lua -i eth0 -f "udp port 3260"
--
-- or copy it to the folder of personal Lua plugins that "Help, About, Folders" names. Under S2-5 the first 16 bytes are readable. Under S1-2 the
-- first 48 are, but no packet says which scheme it has: set the preference "The header is in the clear" (ecl.clear_header) for such a capture.
-- Packets over TCP (ecl+tcp://) follow an encrypted login and are not shown.

local VERSION = 1
local HEADER_BYTES, CLEAR_BYTES, TAG_BYTES = 64, 16, 16
local PROTECTED_BYTES_MAX = 16384
local PAYLOAD_BYTES_MAX = 4096
local DATA, MESSAGE = 1, 2

local ecl = Proto("ecl", "Strongroom Effective Cross Layer")

ecl.prefs.port = Pref.uint("UDP port", 3260, "The port of the target")
ecl.prefs.clear_header = Pref.bool("The header is in the clear", false, "The associations have the scheme S1-2, not S2-5")

local types = { [DATA] = "data", [MESSAGE] = "message" }
local operations = {
  "COMMAND", "DATA OUT", "PLAIN OUT", "DATA IN", "PLAIN IN", "HOLE IN", "RESPONSE", "MANAGE", "MANAGED", "ACKNOWLEDGE", "PING", "PROBE",
  "LOGOUT", "CLOSE", "DRAIN",
}
local attributes = { [0] = "untagged", "simple", "ordered", "head of queue", "ACA" }

local f = {
  version = ProtoField.uint8("ecl.version", "Version", base.DEC, nil, 0xf0),
  type = ProtoField.uint8("ecl.type", "Type", base.DEC, types, 0x0f),
  generation = ProtoField.uint8("ecl.generation", "Key generation (modulo 256)"),
  protected_bytes = ProtoField.uint16("ecl.protected_bytes", "Header and body, in bytes"),
  connection_id = ProtoField.uint32("ecl.connection_id", "Connection id", base.HEX),
  packet_number = ProtoField.uint32("ecl.packet_number", "Packet number (low 32 bits)"),
  sink = ProtoField.uint32("ecl.sink", "Data sink tag", base.HEX),
  sink_generation = ProtoField.uint32("ecl.sink.generation", "Generation", base.DEC, nil, 0xfffff000),
  sink_slot = ProtoField.uint32("ecl.sink.slot", "Slot", base.DEC, nil, 0x00000fff),
  task = ProtoField.uint32("ecl.task", "Initiator task tag"),
  quantum = ProtoField.uint32("ecl.quantum", "Quantum number"),
  operation = ProtoField.uint8("ecl.operation", "Operation", base.DEC, operations),
  flags = ProtoField.uint8("ecl.flags", "Flags", base.HEX),
  acknowledgement = ProtoField.bool("ecl.flags.acknowledgement", "Acknowledgement", 8, nil, 0x01),
  parameters = ProtoField.bool("ecl.flags.parameters", "Parameters (of a command), status (of data)", 8, nil, 0x02),
  sealed = ProtoField.bool("ecl.flags.sealed", "Sealed", 8, nil, 0x04),
  reads = ProtoField.bool("ecl.flags.reads", "Reads", 8, nil, 0x08),
  writes = ProtoField.bool("ecl.flags.writes", "Writes", 8, nil, 0x10),
  attribute = ProtoField.uint8("ecl.flags.attribute", "Task attribute", base.DEC, attributes, 0xe0),
  segment = ProtoField.uint8("ecl.segment", "Segment"),
  segments = ProtoField.uint8("ecl.segments", "Segments of the quantum"),
  epoch = ProtoField.uint32("ecl.order_epoch", "Order epoch"),
  credits = ProtoField.uint32("ecl.credits", "Credits (512 bytes each)"),
  unit = ProtoField.bytes("ecl.unit", "Unit number"),
  length = ProtoField.uint32("ecl.length", "Length, in bytes"),
  specific = ProtoField.bytes("ecl.specific", "Specific to the operation"),
  encrypted = ProtoField.bytes("ecl.encrypted", "Encrypted"),
  tag = ProtoField.bytes("ecl.tag", "Authentication tag"),
  payload = ProtoField.bytes("ecl.payload", "Quantum or segment, sealed"),
}
ecl.fields = f

local malformed = ProtoExpert.new("ecl.malformed", "Not a packet of ECL version 1", expert.group.MALFORMED, expert.severity.ERROR)
ecl.experts = { malformed }

-- Length of header and body, and the type; nil for what is no packet.
local function shape(buffer)
  if buffer:len() < HEADER_BYTES + TAG_BYTES then return nil end
  local first, protected = buffer(0, 1):uint(), buffer(2, 2):uint()
  local version, type = math.floor(first / 16), first % 16
  local payload = buffer:len() - protected - TAG_BYTES
  local is_possible = version == VERSION and types[type] and protected >= HEADER_BYTES and protected <= PROTECTED_BYTES_MAX
    and payload >= 0 and payload <= PAYLOAD_BYTES_MAX and (type == DATA) == (payload > 0)
  if not is_possible then return nil end
  return protected, type
end

-- The bytes that S1-2 leaves readable, from the 16th on. The length of it.
local function add_readable(tree, buffer)
  tree:add(f.task, buffer(16, 4))
  tree:add(f.quantum, buffer(20, 4))
  tree:add(f.operation, buffer(24, 1))
  local flags = tree:add(f.flags, buffer(25, 1))
  for _, bit in ipairs({ f.acknowledgement, f.parameters, f.sealed, f.reads, f.writes, f.attribute }) do
    flags:add(bit, buffer(25, 1))
  end
  tree:add(f.segment, buffer(26, 1))
  tree:add(f.segments, buffer(27, 1))
  tree:add(f.epoch, buffer(28, 4))
  tree:add(f.credits, buffer(32, 4))
  tree:add(f.unit, buffer(36, 8))
  tree:add(f.length, buffer(44, 4))
  return 32
end

function ecl.dissector(buffer, pinfo, root)
  pinfo.cols.protocol = "ECL"
  local tree = root:add(ecl, buffer())
  local protected, type = shape(buffer)
  if not protected then
    tree:add_proto_expert_info(malformed)
    return
  end
  tree:add(f.version, buffer(0, 1))
  tree:add(f.type, buffer(0, 1))
  tree:add(f.generation, buffer(1, 1))
  tree:add(f.protected_bytes, buffer(2, 2))
  tree:add(f.connection_id, buffer(4, 4))
  tree:add(f.packet_number, buffer(8, 4))
  local sink = tree:add(f.sink, buffer(12, 4))
  local has_sink = buffer(12, 4):uint() ~= 0xffffffff
  if has_sink then
    sink:add(f.sink_generation, buffer(12, 4))
    sink:add(f.sink_slot, buffer(12, 4))
  else
    sink:append_text(" (no transfer)")
  end
  local clear, name = CLEAR_BYTES, types[type]
  if ecl.prefs.clear_header then
    clear = clear + add_readable(tree, buffer)
    name = operations[buffer(24, 1):uint()] or name
  end
  tree:add(f.encrypted, buffer(clear, protected - clear))
  tree:add(f.tag, buffer(protected, TAG_BYTES))
  local payload = buffer:len() - protected - TAG_BYTES
  if payload > 0 then tree:add(f.payload, buffer(protected + TAG_BYTES, payload)) end
  local slot = has_sink and string.format(" slot %d", buffer(12, 4):uint() % 4096) or ""
  pinfo.cols.info = string.format("%s %08x #%d%s, payload %d", name, buffer(4, 4):uint(), buffer(8, 4):uint(), slot, payload)
end

-- A port by the preference; packets at other ports are recognized by "Decode As".
local ports = DissectorTable.get("udp.port")
local port = ecl.prefs.port
ports:add(port, ecl)
function ecl.prefs_changed()
  if port ~= ecl.prefs.port then
    ports:remove(port, ecl)
    port = ecl.prefs.port
    ports:add(port, ecl)
  end
end
