package request

import (
	"testing"
)

func TestSysctlsAreSplit(t *testing.T) {
	net, ipc := SplitSysctls(map[string]string{
		"net.ipv4.conf.eth0/1.forwarding": "1", "net/ipv4/tcp_syncookies": "0", "kernel.shmmax": "9", "fs.mqueue.msg_max": "7",
	})
	if net["net/ipv4/conf/eth0.1/forwarding"] != "1" || net["net/ipv4/tcp_syncookies"] != "0" || len(net) != 2 {
		t.Errorf("network: %v", net)
	}
	if ipc["kernel/shmmax"] != "9" || ipc["fs/mqueue/msg_max"] != "7" || len(ipc) != 2 {
		t.Errorf("ipc: %v", ipc)
	}
}
