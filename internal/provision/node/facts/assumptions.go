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

// Assume returns the facts of a machine that does not exist yet: a fresh one, with no kubelet and no
// runtime to replace. programs are the paths of berth's own programs that its image must have.
func Assume(n *nodefile.Node, s Assumptions) (f Facts, programs []string, err error) {
	f = Facts{
		Distro: s.Distro, Arch: s.Arch, SELinux: s.Distro.SELinux, Versions: s.Versions, NvidiaCTK: s.NvidiaCTK,
		Berth: s.Berth, Supervisor: s.Supervisor, File: s.File,
	}
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
