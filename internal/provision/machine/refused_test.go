package machine

import (
	"strings"
	"testing"
)

func TestRefusedBy(t *testing.T) {
	const all = "Name:\tberth\nCapEff:\t000001ffffffffff\n"
	for _, c := range []struct {
		name          string
		uid           int
		status, label string
		want          string
	}{
		{"a user", 1000, all, "", "user 1000 may not"},
		{"root of a container", 0, "CapEff:\t0000000000000400\n", "", "CapEff 0000000000000400"},
		{"AppArmor", 0, all, "berth-node (enforce)\n", "is berth-node (enforce)"},
		{"SELinux", 0, all, "system_u:system_r:container_t:s0\x00", "is system_u:system_r:container_t:s0 ("},
		{"unconfined", 0, all, "unconfined\n", "the file system or its server does"},
		{"no module", 0, all, "", "the file system or its server does"},
	} {
		if got := refusedBy(c.uid, c.status, c.label); !strings.Contains(got, c.want) {
			t.Errorf("%s: %q does not say %q", c.name, got, c.want)
		}
	}
}
