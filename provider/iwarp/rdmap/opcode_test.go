package rdmap

import "testing"

// RFC 5040 figure 4 and RFC 7306 figure 2, row by row.
//
//rfc:5040 RDMAP-4.1-03 T flag per message type table
//rfc:5040 RDMAP-4.1-04 Opcode values per table (Write 0 .. Terminate 7)
//rfc:5040 RDMAP-4.1-11 Send-class messages use QN 0, ReadReq QN 1, Terminate QN 2
//rfc:7306 EXT-4.1-02 Opcodes 8 Imm, 9 ImmSE, 10 AtomicReq, 11 AtomicResp
//rfc:7306 EXT-4.1-04 All four untagged: QN 0 (Imm), 1 (AtomicReq), 3 (AtomicResp)
//rfc:6580 IANA-3.4-01 Opcode registry 0-7 (+8-11 by 7306), 15 experimental
func TestOpcodes(t *testing.T) {
	const none = -1
	for _, tt := range []struct {
		op         Opcode
		value      uint8
		name       string
		tagged     bool
		qn         int
		invalidate bool
		solicited  bool
	}{
		{OpWrite, 0b0000, "RDMA Write", true, none, false, false},
		{OpReadRequest, 0b0001, "RDMA Read Request", false, 1, false, false},
		{OpReadResponse, 0b0010, "RDMA Read Response", true, none, false, false},
		{OpSend, 0b0011, "Send", false, 0, false, false},
		{OpSendInvalidate, 0b0100, "Send with Invalidate", false, 0, true, false},
		{OpSendSE, 0b0101, "Send with SE", false, 0, false, true},
		{OpSendSEInvalidate, 0b0110, "Send with SE and Invalidate", false, 0, true, true},
		{OpTerminate, 0b0111, "Terminate", false, 2, false, false},
		{OpImmediate, 0b1000, "Immediate Data", false, 0, false, false},
		{OpImmediateSE, 0b1001, "Immediate Data with SE", false, 0, false, true},
		{OpAtomicRequest, 0b1010, "Atomic Request", false, 1, false, false},
		{OpAtomicResponse, 0b1011, "Atomic Response", false, 3, false, false},
		{12, 0b1100, "reserved opcode 12", false, none, false, false},
		{15, 0b1111, "reserved opcode 15", false, none, false, false},
	} {
		if uint8(tt.op) != tt.value || tt.op.String() != tt.name {
			t.Errorf("%d is %q, want %d %q", tt.op, tt.op, tt.value, tt.name)
		}
		if tt.op.Tagged() != tt.tagged || tt.op.Invalidates() != tt.invalidate || tt.op.Solicited() != tt.solicited {
			t.Errorf("%v: tagged %v, invalidates %v, solicited %v", tt.op, tt.op.Tagged(), tt.op.Invalidates(), tt.op.Solicited())
		}
		qn, ok := tt.op.QN()
		if ok != (tt.qn != none) || ok && int(qn) != tt.qn {
			t.Errorf("%v: QN %d, %v; want %d", tt.op, qn, ok, tt.qn)
		}
		if tt.op.IsSend() != (tt.qn == 0 && tt.value < 8) {
			t.Errorf("%v: IsSend %v", tt.op, tt.op.IsSend())
		}
		if tt.op.Defined() != (tt.value < 8) {
			t.Errorf("%v: Defined %v", tt.op, tt.op.Defined())
		}
		if tt.op.Extension() != (tt.value >= 8 && tt.value < 12) {
			t.Errorf("%v: Extension %v", tt.op, tt.op.Extension())
		}
	}
}

// Every octet is a control field and is written back unchanged.
//
//rfc:5040 RDMAP-4.1-01 First RsvdULP octet is the control field RV/Rsv/Opcode
func TestControlOctet(t *testing.T) {
	for b := range 256 {
		c := ParseControl(byte(b))
		if c.Version > 3 || c.Reserved > 3 || c.Opcode > 15 || c.Octet() != byte(b) {
			t.Errorf("%#02x is %+v and written back as %#02x", b, c, c.Octet())
		}
	}
	if got, want := ParseControl(0b01_10_0101), (Control{Version: 1, Reserved: 2, Opcode: OpSendSE}); got != want {
		t.Errorf("ParseControl = %+v, want %+v", got, want)
	}
	if got := (Control{Version: 0xff, Reserved: 0xff, Opcode: 0xff}).Octet(); got != 0xff {
		t.Errorf("excess bits: %#02x", got)
	}
	if got := (Control{Reserved: 0xfc}).Octet(); got != 0 {
		t.Errorf("excess reserved bits spill into RV: %#02x", got)
	}
}
