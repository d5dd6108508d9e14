package host

import "testing"

func TestUsesSystemd(t *testing.T) {
	for config, want := range map[string]bool{
		`{"containerd":{"defaultRuntimeName":"runc","runtimes":{"runc":{"options":{"SystemdCgroup":true}}}}}`:                                       true,
		`{"containerd":{"defaultRuntimeName":"runc","runtimes":{"runc":{"options":{"SystemdCgroup":false}}}}}`:                                      false,
		`{"containerd":{"defaultRuntimeName":"kata","runtimes":{"kata":{"options":null},"runc":{"options":{"SystemdCgroup":true}}}},"cni":{"a":1}}`: false,
		``: false,
	} {
		if got := usesSystemd(config); got != want {
			t.Errorf("%s: %t, want %t", config, got, want)
		}
	}
}
