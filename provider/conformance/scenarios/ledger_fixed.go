package scenarios

import "github.com/govs-rdma/govs/provider/conformance"

// rawFixedLedger is about faults of siw that a release of the kernel has fixed. The guest
// takes the newest kernel of the archive that it is given, and without Debian's security
// updates that is an older one.
func rawFixedLedger() conformance.Ledger {
	l := siwDiffers("siw-response-runs-on", "siw-response-runs-on.md",
		"siw places later segments of a Read Response after the octets that were asked for, and "+
			"the Read completes with success.",
		conformance.RoleInitiator, false,
		each(the("rdmap/response-last-missing"), keyTold, keyEnds,
			"check:the Read does not complete with success",
			"check:nothing is placed after the octets that were asked for",
			keyTerminate, keyEnd, "observe:initiator.send.wc", "wire:to-responder:terminate:missing")...)
	for i := range l {
		l[i].Kernels = "6.1.176"
		l[i].Fixed = []string{"6.1.178", "6.12.96"}
	}
	return l
}
