// Package distro is the table of distributions: their names, paths and package names. It reads
// os-release and nothing else.
package distro

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/berthrun/berth/internal/errs"
)

// Package names a package by its purpose.
type Package string

// The packages.
const (
	Containerd  Package = "containerd"
	Runc        Package = "runc"
	Crun        Package = "crun"
	CRIO        Package = "cri-o"
	Docker      Package = "docker"
	DockerCLI   Package = "docker-cli" // where docker is without it
	CNIPlugins  Package = "cni-plugins"
	Nftables    Package = "nftables"
	Iptables    Package = "iptables"
	Conntrack   Package = "conntrack"
	Socat       Package = "socat"
	Ethtool     Package = "ethtool"
	Seccomp     Package = "libseccomp"
	SELinux     Package = "container-selinux"
	UtilLinux   Package = "util-linux"
	Mount       Package = "mount" // where util-linux is without it
	Kmod        Package = "kmod"
	IPRoute     Package = "iproute"
	Logrotate   Package = "logrotate"
	LibAppArmor Package = "libapparmor"
)

// Distro is one release of a distribution.
type Distro struct {
	// ID and Version are those of os-release: "debian" and "12"; a rolling one has no
	// version.
	ID, Version string
	// Name is for people: "Debian GNU/Linux 12 (bookworm)".
	Name string
	// Family is debian, rhel, suse, flatcar or cos.
	Family string
	// Manager is apt, dnf or zypper; empty where packages cannot be installed.
	Manager string
	// Immutable is true where /usr is read-only and the runtime comes with the system: its unit
	// gets drop-ins, and nothing replaces it.
	Immutable bool
	// BinDir is where binaries that no package brings go; LicenseDir their licences.
	BinDir, LicenseDir string
	// CNIBinDir is where CNI plugins that no package brings go, CNIPackageDir where the
	// distribution's package puts them.
	CNIBinDir, CNIPackageDir string
	// SELinux is true where the machine usually runs it.
	SELinux bool
	// Tested is false for a release that the table does not list; it is treated as the
	// nearest one.
	Tested bool

	packages map[Package]string
}

// Package returns the distribution's name of a package; "" when it has none.
func (d Distro) Package(p Package) string { return d.packages[p] }

// Detect reads /etc/os-release. A distribution that berth does not support is an error of kind
// errs.Unsupported with the reason.
func Detect(osRelease []byte) (Distro, error) {
	fields := parse(string(osRelease))
	id := fields["ID"]
	if id == "" {
		return Distro{}, fmt.Errorf("os-release names no ID: %w", errs.Unsupported)
	}
	name := fields["PRETTY_NAME"]
	if name == "" {
		name = strings.TrimSpace(id + " " + fields["VERSION_ID"])
	}
	if reason, refused := refusals()[id]; refused {
		return Distro{}, fmt.Errorf("%s: %s: %w", name, reason, errs.Unsupported)
	}
	ids := append([]string{id}, strings.Fields(fields["ID_LIKE"])...)
	for i, candidate := range ids {
		entry, known := table()[candidate]
		if !known {
			continue
		}
		d := entry.distro
		d.ID, d.Version, d.Name = id, fields["VERSION_ID"], name
		d.Tested = i == 0 && entry.lists(d.Version)
		if entry.adjust != nil {
			entry.adjust(&d)
		}
		return d, nil
	}
	return Distro{}, fmt.Errorf("%s: berth has no table for %s; it knows %s: %w",
		name, strings.Join(ids, " or "), strings.Join(IDs(), ", "), errs.Unsupported)
}

// parse reads the shell-like lines of os-release.
func parse(text string) map[string]string {
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		key, value, found := strings.Cut(strings.TrimSpace(line), "=")
		if !found || strings.HasPrefix(key, "#") {
			continue
		}
		if plain, err := strconv.Unquote(value); err == nil {
			value = plain
		}
		fields[key] = strings.Trim(value, `'"`)
	}
	return fields
}

// entry is one line of the table.
type entry struct {
	distro Distro
	// versions are those that are listed; a prefix up to a dot is enough. Empty: any.
	versions []string
	// adjust changes what differs between releases.
	adjust func(*Distro)
}

func (e entry) lists(version string) bool {
	return len(e.versions) == 0 || slices.ContainsFunc(e.versions, func(v string) bool {
		return version == v || strings.HasPrefix(version, v+".")
	})
}

// IDs lists the known distributions.
func IDs() []string {
	var ids []string
	for id := range table() {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// Releases lists every distribution and version of the table, "debian 12".
func Releases() []string {
	var all []string
	for id, entry := range table() {
		if len(entry.versions) == 0 {
			all = append(all, id)
		}
		for _, version := range entry.versions {
			all = append(all, id+" "+version)
		}
	}
	slices.Sort(all)
	return all
}

// Release returns an entry of Releases.
func Release(release string) (Distro, error) {
	id, version, _ := strings.Cut(release, " ")
	return Detect([]byte("ID=" + id + "\nVERSION_ID=" + version + "\n"))
}
