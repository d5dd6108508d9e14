package node

import (
	"path"

	"github.com/berthrun/berth/internal/provision/node/distro"
	"github.com/berthrun/berth/internal/provision/node/nodefile"
)

// Supposed is what is said of a machine that is not there.
type Supposed struct {
	Distro distro.Distro
	// Arch is as Go has it.
	Arch string
	// Versions of runtimes that come with the machine, by name.
	Versions map[string]nodefile.Version
	// NvidiaCTK is where the machine has nvidia-ctk; empty for not at all.
	NvidiaCTK string
	// Berth and Supervisor are where the machine fetches berth's binaries; without a
	// digest they are taken to be in place.
	Berth, Supervisor Binary
	// File is where the description will lie.
	File string
	// Read reads the credentials that the description names.
	Read func(name string) ([]byte, error)
}

// Suppose makes facts of what is said of a machine, as Detect does of one that is
// there: a fresh one, with no kubelet and no runtime to replace. programs are paths
// of berth's own that the machine must bring.
func Suppose(n *nodefile.Node, s Supposed) (f Facts, programs []string, err error) {
	f = Facts{
		Distro: s.Distro, Arch: s.Arch, SELinux: s.Distro.SELinux, Versions: s.Versions, NvidiaCTK: s.NvidiaCTK,
		Berth: s.Berth, Supervisor: s.Supervisor, File: s.File,
	}
	var misfits Misfits
	if f.Credentials, misfits = readCredentials(s.Read, append(registryCredentials(n), assetCredentials(n)...)); len(misfits) > 0 {
		return f, nil, misfits
	}
	if wantsBerth(n, f) && f.Berth.Digest == "" {
		programs = append(programs, path.Join(f.Distro.BinDir, "berth"))
	}
	if wantsSupervisor(n) && f.Supervisor.Digest == "" {
		programs = append(programs, path.Join(f.Distro.BinDir, "berth-supervisor"))
	}
	return f, programs, nil
}
