package criuimage

import (
	"slices"
	"strings"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/creds"
	"github.com/moby/sys/capability"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
)

// rights are what the processes of a request may have.
type rights struct {
	uid, gid uint32
	groups   []uint32
	// anyUID and anyGID say that its init may become any user or group.
	anyUID, anyGID bool
	// readAny and writeAny say that it may read and write the files of all users.
	readAny, writeAny bool
	// permitted, bounding and ambient are sets of capabilities.
	permitted, bounding, ambient, inheritable uint64
	noNewPrivs                                bool
	// profile is what CRIU knows the security label by, "" for none.
	profile string
}

// rightsOf computes what a program has when the request starts it: root gets the whole bounding set, and other users
// the ambient set.
func rightsOf(spec *specs.Spec) rights {
	p := spec.Process
	r := rights{uid: p.User.UID, gid: p.User.GID, groups: append([]uint32{p.User.GID}, p.User.AdditionalGids...), noNewPrivs: p.NoNewPrivileges}
	if c := p.Capabilities; c != nil {
		r.bounding, r.ambient, r.inheritable = setOf(c.Bounding), setOf(c.Ambient), setOf(c.Inheritable)
	}
	r.permitted = r.ambient
	if r.uid == 0 {
		r.permitted = r.bounding | r.inheritable
	}
	has := func(c capability.Cap) bool { return r.permitted&(1<<uint(c)) != 0 }
	r.anyUID, r.anyGID = has(capability.CAP_SETUID), has(capability.CAP_SETGID)
	r.writeAny = has(capability.CAP_DAC_OVERRIDE)
	r.readAny = r.writeAny || has(capability.CAP_DAC_READ_SEARCH)
	switch {
	case p.ApparmorProfile != "" && p.ApparmorProfile != "unconfined":
		r.profile = p.ApparmorProfile
	case p.SelinuxLabel != "":
		r.profile = p.SelinuxLabel
	}
	return r
}

// setOf returns capabilities as bits. Names that the kernel does not know are in no set.
func setOf(names []string) (set uint64) {
	for _, c := range capability.ListKnown() {
		if slices.Contains(names, "CAP_"+strings.ToUpper(c.String())) {
			set |= 1 << uint(c)
		}
	}
	return set
}

// fit refuses rights of a thread that exceed those of the request, and sets what the request alone decides. name is
// that of the image.
func (r *rights) fit(name string, c *creds.CredsEntry) error {
	if c == nil {
		return bad(name, "it has no credentials")
	}
	for _, id := range []uint32{c.GetUid(), c.GetEuid(), c.GetSuid(), c.GetFsuid()} {
		if id != r.uid && !r.anyUID {
			return bad(name, "user %d: the request is for user %d, which cannot become another", id, r.uid)
		}
	}
	for _, id := range append([]uint32{c.GetGid(), c.GetEgid(), c.GetSgid(), c.GetFsgid()}, c.GetGroups()...) {
		if !slices.Contains(r.groups, id) && !r.anyGID {
			return bad(name, "group %d: the request does not give it", id)
		}
	}
	for _, each := range []struct {
		kind    string
		set     []uint32
		allowed uint64
	}{
		{"permitted", c.GetCapPrm(), r.permitted},
		{"effective", c.GetCapEff(), r.permitted},
		{"inheritable", c.GetCapInh(), r.inheritable},
		{"bounding", c.GetCapBnd(), r.bounding},
		{"ambient", c.GetCapAmb(), r.ambient},
	} {
		// CRIU copies as many words as there are.
		if len(each.set) != capabilityWords && (each.kind != "ambient" || len(each.set) != 0) {
			return bad(name, "its set of %s capabilities has %d words", each.kind, len(each.set))
		}
		bits := bitsOf(each.set)
		if more := bits &^ each.allowed; more != 0 {
			return bad(name, "%s capabilities %#x: the request does not give them", each.kind, more)
		}
	}
	if c.GetSecbits() != 0 {
		return unsupported(name, "securebits %#x", c.GetSecbits())
	}
	if len(c.GetGroups()) > maxGroups {
		return bad(name, "it has %d groups", len(c.GetGroups()))
	}
	c.LsmProfile, c.LsmSockcreate, c.ApparmorData = nil, nil, nil
	if r.profile != "" {
		c.LsmProfile = proto.String(r.profile)
	}
	if r.noNewPrivs {
		c.NoNewPrivs = proto.Uint32(1)
	}
	if c.GetNoNewPrivs() > 1 {
		return bad(name, "no_new_privs is %d", c.GetNoNewPrivs())
	}
	return nil
}

// maxGroups is how many groups the kernel gives a process.
const maxGroups = 65536

// capabilityWords is how many words a set of capabilities has.
const capabilityWords = 2

func bitsOf(words []uint32) (set uint64) {
	for i, word := range words {
		set |= uint64(word) << (32 * i)
	}
	return set
}
