package finish

import "github.com/berthrun/berth/internal/supervisor/ownstart/codec"

// Encode writes the process for Decode.
func (p *Process) Encode(w *codec.Writer) {
	w.Strings(p.Args)
	w.Strings(p.Env)
	w.Bool(p.NeedsHome)
	w.String(p.Cwd)
	w.Int(p.UID)
	w.Int(p.GID)
	w.Uint(uint64(len(p.Groups)))
	for _, gid := range p.Groups {
		w.Int(gid)
	}
	w.Int(p.Umask)
	w.Uint(uint64(len(p.Rlimits)))
	for _, l := range p.Rlimits {
		w.Int(l.Kind)
		w.Uint(l.Soft)
		w.Uint(l.Hard)
	}
	w.Bool(p.Capabilities != nil)
	if c := p.Capabilities; c != nil {
		for _, set := range []uint64{c.Bounding, c.Effective, c.Permitted, c.Inheritable, c.Ambient} {
			w.Uint(set)
		}
	}
	w.Bool(p.NoNewPrivileges)
	w.Bool(p.Filter != nil)
	if f := p.Filter; f != nil {
		w.Bytes(f.Program)
		w.Uint(uint64(f.Flags))
	}
	w.String(p.AppArmor)
	w.String(p.SELinux)
	w.Bool(p.OOMScoreAdj != nil)
	if p.OOMScoreAdj != nil {
		w.Int(*p.OOMScoreAdj)
	}
	w.String(p.Keyring)
	w.Uint(uint64(p.KeyringAccess))
}

// Decode reads what Encode has written. The filter refers to the bytes of r.
func Decode(r *codec.Reader) *Process {
	p := &Process{Args: r.Strings(), Env: r.Strings(), NeedsHome: r.Bool(), Cwd: r.String(), UID: r.Int(), GID: r.Int()}
	for range r.Len(1) {
		p.Groups = append(p.Groups, r.Int())
	}
	p.Umask = r.Int()
	for range r.Len(3) {
		p.Rlimits = append(p.Rlimits, Rlimit{Kind: r.Int(), Soft: r.Uint(), Hard: r.Uint()})
	}
	if r.Bool() {
		p.Capabilities = &Capabilities{
			Bounding: r.Uint(), Effective: r.Uint(), Permitted: r.Uint(), Inheritable: r.Uint(), Ambient: r.Uint(),
		}
	}
	p.NoNewPrivileges = r.Bool()
	if r.Bool() {
		p.Filter = &Filter{Program: r.Bytes(), Flags: uint(r.Uint())}
	}
	p.AppArmor, p.SELinux = r.String(), r.String()
	if r.Bool() {
		score := r.Int()
		p.OOMScoreAdj = &score
	}
	p.Keyring, p.KeyringAccess = r.String(), uint32(r.Uint())
	return p
}
