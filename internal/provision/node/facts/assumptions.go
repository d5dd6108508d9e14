package facts

import (
	"path"

	"github.com/berthrun/berth/internal/provision/node/distro"
	"github.com/berthrun/berth/internal/provision/node/nodefile"
)

// Assumptions are the facts that a user states of a machine that does not exist yet.
type Assumptions struct {
	Distro distro.Distro
	// Arch is as Go has it.
	Arch string
	// Versions of runtimes that come with the machine, by name.
	Versions map[string]nodefile.Version
	// NvidiaCTK is the path of nvidia-ctk; empty if the machine has none.
	NvidiaCTK string
	// Berth and Supervisor are the sources of berth's binaries; without a digest the machine is
	// assumed to have them.
	Berth, Supervisor Binary
	// File will be the path of the node file.
	File string
	// Read reads the credentials that the node file names.
	Read func(name string) ([]byte, error)
}

// Assume returns the facts of a machine that does not exist yet: a fresh one, with no kubelet and
// no runtime to replace. programs are the paths of berth's own programs that its image must have.
func Assume(n *nodefile.Node, s Assumptions) (f Facts, programs []string, err error) {
	f = Facts{
		Distro: s.Distro, Arch: s.Arch, SELinux: s.Distro.SELinux, Versions: s.Versions, NvidiaCTK: s.NvidiaCTK,
		Berth: s.Berth, Supervisor: s.Supervisor, File: s.File,
	}
	f.ownNetwork(n)
	var faults nodefile.FieldErrors
	if f.Credentials, faults = readCredentials(s.Read, append(registryCredentials(n), assetCredentials(n)...)); len(faults) > 0 {
		return f, nil, faults
	}
	if f.NeedsBerth(n) && f.Berth.Digest == "" {
		programs = append(programs, path.Join(f.Distro.BinDir, "berth"))
	}
	if NeedsSupervisor(n) && f.Supervisor.Digest == "" {
		programs = append(programs, path.Join(f.Distro.BinDir, "berth-supervisor"))
	}
	return f, programs, nil
}
