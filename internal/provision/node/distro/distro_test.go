package distro

import (
	"errors"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/errs"
)

func TestDetect(t *testing.T) {
	cases := map[string]struct {
		osRelease, id, version, family, manager string
		tested, immutable                       bool
	}{
		"debian":      {"PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nVERSION_ID=\"12\"\nID=debian\n", "debian", "12", "debian", "apt", true, false},
		"old debian":  {"ID=debian\nVERSION_ID=\"10\"\n", "debian", "10", "debian", "apt", false, false},
		"ubuntu":      {"ID=ubuntu\nID_LIKE=debian\nVERSION_ID=\"24.04\"\n", "ubuntu", "24.04", "debian", "apt", true, false},
		"mint":        {"ID=linuxmint\nID_LIKE=\"ubuntu debian\"\nVERSION_ID=\"22\"\n", "linuxmint", "22", "debian", "apt", false, false},
		"rocky":       {"ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\nVERSION_ID=\"9.5\"\n", "rocky", "9.5", "rhel", "dnf", true, false},
		"oracle":      {"ID=\"ol\"\nID_LIKE=\"fedora\"\nVERSION_ID=\"9.4\"\n", "ol", "9.4", "rhel", "dnf", false, false},
		"amazon":      {"ID=\"amzn\"\nID_LIKE=\"fedora\"\nVERSION_ID=\"2023\"\n", "amzn", "2023", "rhel", "dnf", true, false},
		"tumbleweed":  {"ID=\"opensuse-tumbleweed\"\nID_LIKE=\"opensuse suse\"\nVERSION_ID=\"20260101\"\n", "opensuse-tumbleweed", "20260101", "suse", "zypper", true, false},
		"flatcar":     {"ID=flatcar\nID_LIKE=coreos\nVERSION_ID=4230.2.1\n", "flatcar", "4230.2.1", "flatcar", "", true, true},
		"cos":         {"ID=cos\nVERSION_ID=117\n", "cos", "117", "cos", "", true, true},
		"single tick": {"ID='debian'\nVERSION_ID='13'\n# ID=other\n", "debian", "13", "debian", "apt", true, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			d, err := Detect([]byte(c.osRelease))
			if err != nil {
				t.Fatal(err)
			}
			if d.ID != c.id || d.Version != c.version || d.Family != c.family || d.Manager != c.manager || d.Tested != c.tested || d.Immutable != c.immutable {
				t.Errorf("%+v", d)
			}
		})
	}
}

func TestDetectRefusesWithAReason(t *testing.T) {
	for osRelease, reason := range map[string]string{
		"ID=bottlerocket\nPRETTY_NAME=\"Bottlerocket OS 1.40\"\n": "Bottlerocket OS 1.40: is configured through its own settings API",
		"ID=alpine\nVERSION_ID=3.22\n":                            "alpine 3.22: runs OpenRC",
		"ID=plan9\n":                                              "berth has no table for plan9; it knows almalinux, amzn,",
		"":                                                        "names no ID",
	} {
		_, err := Detect([]byte(osRelease))
		if !errors.Is(err, errs.Unsupported) || !strings.Contains(err.Error(), reason) {
			t.Errorf("%q: %v", osRelease, err)
		}
	}
}

// TestTableIsComplete: each row has all required values.
func TestTableIsComplete(t *testing.T) {
	for _, release := range Releases() {
		d, err := Release(release)
		if err != nil {
			t.Fatal(err)
		}
		if !d.Tested || d.BinDir == "" || d.CNIBinDir == "" || d.LicenseDir == "" {
			t.Errorf("%s: %+v", release, d)
		}
		if d.Immutable != (d.Manager == "") {
			t.Errorf("%s: immutable %v with package manager %q", release, d.Immutable, d.Manager)
		}
		for _, p := range []Package{Nftables, Conntrack, CNIPlugins} {
			if !d.Immutable && d.Package(p) == "" {
				t.Errorf("%s: no name for %s", release, p)
			}
		}
	}
}
