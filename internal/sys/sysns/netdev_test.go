package sysns

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseNetDev(t *testing.T) {
	got := parseNetDev(`Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:       0       0    0    0    0     0          0         0        0       0    0    0    0     0       0          0
  eth0: 1010000      11    2    3    0     0          0         0     5006      17    8    9    0     0       0          0
 short: 1 2
`)
	want := []LinkCounters{
		{Name: "lo"},
		{Name: "eth0", RxBytes: 1010000, RxPackets: 11, RxErrors: 2, RxDropped: 3, TxBytes: 5006, TxPackets: 17, TxErrors: 8, TxDropped: 9},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
