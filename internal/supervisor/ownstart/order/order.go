// Package order has what the supervisor and the init that it creates send each other over their socket:
// one order, with descriptors, and the init's answers.
package order

import (
	"github.com/berthrun/berth/internal/supervisor/ownstart/codec"
	"github.com/berthrun/berth/internal/supervisor/ownstart/finish"
)

// Create is the order to become the init of a container. The child has the container's network, IPC,
// UTS and PID namespaces already, and an empty mount namespace of its own. Descriptors are numbers of
// those that come with the order, -1 for none.
type Create struct {
	// Tasks are files of the cgroups to join: "tasks" of v1, or "cgroup.procs" of v2.
	Tasks []int
	// HostMounts is the mount namespace in which Root and the sources of mounts are. It is -1 when the
	// child has clones of them at the places that StagedAt names: it cannot enter the namespace of the
	// host from a user namespace.
	HostMounts int
	// Fifo is the container's FIFO, opened as a path.
	Fifo int
	// Console is a socket for the master of the terminal. Width and Height are 0 to keep the
	// terminal's own.
	Console       int
	Width, Height int
	// NewCgroup gives the init a cgroup namespace whose root is its cgroup.
	NewCgroup bool

	Root    Root
	Mounts  []Mount
	Devices []Device
	// BindDevices mounts the host's device nodes, at the same paths. No node can be made in a user
	// namespace.
	BindDevices bool
	// Dev is true when the init fills /dev: device nodes and links.
	Dev bool
	// Core adds the link /dev/core.
	Core bool
	// Hostname and Domainname are "" to keep those of the UTS namespace.
	Hostname, Domainname string
	Sysctls              []Sysctl
	ReadOnly, Masked     []string
	Process              *finish.Process
}

// Root is the container's root filesystem.
type Root struct {
	// Path is its directory on the host.
	Path     string
	ReadOnly bool
	// Tree are propagation types (MS_SLAVE, ..., with MS_REC) for the clone of the root, in
	// their order. Final is one for the whole tree after the change of root, 0 for none.
	Tree  []uint64
	Final uint64
}

// Mount is one mount, made after those before it in the list.
type Mount struct {
	// Target is the mount point as the spec has it.
	Target string
	// Bind clones the tree at Source, all of it with Recursive. Otherwise the mount is a new
	// filesystem of Type, and Source its name.
	Bind, Recursive bool
	Type, Source    string
	// MapIDs is the path of a user namespace that maps the owners of the source's files, "" for none.
	// MapAll maps those of all mounts below the source, too.
	MapIDs string
	MapAll bool
	// Params are options of the new filesystem: "key=value" or "flag".
	Params []string
	// CopyUp copies what is at the mount point into the new filesystem.
	CopyUp bool
	// Set and Clear are mount attributes (MOUNT_ATTR_...).
	Set, Clear uint64
	// Request and Refuse are the flags of a bind mount (MS_RDONLY, ...) that its spec sets and clears.
	// They matter where flags of the source are locked.
	Request, Refuse uint64
	// SetAll and ClearAll are mount attributes of the whole tree.
	SetAll, ClearAll uint64
	// ReadOnlyLast makes the mount read-only when all mounts are there.
	ReadOnlyLast bool
	// Tree are propagation types for the clone of a bind mount before it is mounted, Propagation
	// those of a mount afterwards, in their order.
	Tree, Propagation []uint64
	// Links are made in the new filesystem: name, target, name, target, ...
	Links []string
}

// Device is a device node.
type Device struct {
	Path string
	// Mode has the type, too (S_IFCHR, ...).
	Mode         uint64
	Major, Minor uint64
	UID, GID     int
}

// Sysctl is one kernel parameter. File is its path below /proc/sys.
type Sysctl struct{ Name, File, Value string }

// Encode returns the bytes that Decode reads.
func (c *Create) Encode() []byte {
	var w codec.Writer
	w.Uint(uint64(len(c.Tasks)))
	for _, fd := range c.Tasks {
		w.Int(fd)
	}
	for _, v := range []int{c.HostMounts, c.Fifo, c.Console, c.Width, c.Height} {
		w.Int(v)
	}
	w.Bool(c.NewCgroup)
	w.String(c.Root.Path)
	w.Bool(c.Root.ReadOnly)
	numbers(&w, c.Root.Tree)
	w.Uint(c.Root.Final)
	w.Uint(uint64(len(c.Mounts)))
	for i := range c.Mounts {
		c.Mounts[i].encode(&w)
	}
	w.Uint(uint64(len(c.Devices)))
	for _, d := range c.Devices {
		w.String(d.Path)
		w.Uint(d.Mode)
		w.Uint(d.Major)
		w.Uint(d.Minor)
		w.Int(d.UID)
		w.Int(d.GID)
	}
	w.Bool(c.BindDevices)
	w.Bool(c.Dev)
	w.Bool(c.Core)
	w.String(c.Hostname)
	w.String(c.Domainname)
	w.Uint(uint64(len(c.Sysctls)))
	for _, s := range c.Sysctls {
		w.String(s.Name)
		w.String(s.File)
		w.String(s.Value)
	}
	w.Strings(c.ReadOnly)
	w.Strings(c.Masked)
	c.Process.Encode(&w)
	return w.Encoded()
}

func (m *Mount) encode(w *codec.Writer) {
	w.String(m.Target)
	w.Bool(m.Bind)
	w.Bool(m.Recursive)
	w.String(m.Type)
	w.String(m.Source)
	w.Strings(m.Params)
	w.String(m.MapIDs)
	w.Bool(m.MapAll)
	w.Bool(m.CopyUp)
	for _, v := range []uint64{m.Set, m.Clear, m.Request, m.Refuse, m.SetAll, m.ClearAll} {
		w.Uint(v)
	}
	w.Bool(m.ReadOnlyLast)
	numbers(w, m.Tree)
	numbers(w, m.Propagation)
	w.Strings(m.Links)
}

func numbers(w *codec.Writer, list []uint64) {
	w.Uint(uint64(len(list)))
	for _, v := range list {
		w.Uint(v)
	}
}

// DecodeCreate reads what Encode has written.
func DecodeCreate(b []byte) (*Create, error) {
	r := codec.NewReader(b)
	c := &Create{}
	for range r.Len(1) {
		c.Tasks = append(c.Tasks, r.Int())
	}
	for _, v := range []*int{&c.HostMounts, &c.Fifo, &c.Console, &c.Width, &c.Height} {
		*v = r.Int()
	}
	c.NewCgroup = r.Bool()
	c.Root = Root{Path: r.String(), ReadOnly: r.Bool(), Tree: readNumbers(r), Final: r.Uint()}
	c.Mounts = make([]Mount, r.Len(18))
	for i := range c.Mounts {
		c.Mounts[i].decode(r)
	}
	c.Devices = make([]Device, r.Len(6))
	for i := range c.Devices {
		c.Devices[i] = Device{Path: r.String(), Mode: r.Uint(), Major: r.Uint(), Minor: r.Uint(), UID: r.Int(), GID: r.Int()}
	}
	c.BindDevices, c.Dev, c.Core = r.Bool(), r.Bool(), r.Bool()
	c.Hostname, c.Domainname = r.String(), r.String()
	for range r.Len(3) {
		c.Sysctls = append(c.Sysctls, Sysctl{Name: r.String(), File: r.String(), Value: r.String()})
	}
	c.ReadOnly, c.Masked = r.Strings(), r.Strings()
	c.Process = finish.Decode(r)
	return c, r.Err()
}

func (m *Mount) decode(r *codec.Reader) {
	m.Target = r.String()
	m.Bind, m.Recursive = r.Bool(), r.Bool()
	m.Type, m.Source = r.String(), r.String()
	m.Params = r.Strings()
	m.MapIDs, m.MapAll, m.CopyUp = r.String(), r.Bool(), r.Bool()
	for _, v := range []*uint64{&m.Set, &m.Clear, &m.Request, &m.Refuse, &m.SetAll, &m.ClearAll} {
		*v = r.Uint()
	}
	m.ReadOnlyLast = r.Bool()
	m.Tree, m.Propagation = readNumbers(r), readNumbers(r)
	m.Links = r.Strings()
}

func readNumbers(r *codec.Reader) []uint64 {
	var list []uint64
	for range r.Len(1) {
		list = append(list, r.Uint())
	}
	return list
}
