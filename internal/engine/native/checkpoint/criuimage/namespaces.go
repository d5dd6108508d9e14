package criuimage

import (
	"fmt"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/inventory"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/netdev"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/pidns"
	pipedata "github.com/checkpoint-restore/go-criu/v8/crit/images/pipe-data"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/timens"
	"google.golang.org/protobuf/proto"

	criucore "github.com/checkpoint-restore/go-criu/v8/crit/images/criu-core"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// The numbers of namespaces in the images that Fit writes: those of CRIU itself, and those of the processes that have
// their own.
const (
	hostPidNS = iota + 1
	hostNetNS
	hostIPCNS
	hostUTSNS
	hostTimeNS
	hostMntNS
	hostUserNS
	hostCgroupNS
	pidNS
	netNS
	mntNS
	cgroupNS
)

// cgroupSet is the number of the only set of cgroups, which the supervisor writes. hostCgroupSet is that of CRIU itself.
const (
	hostCgroupSet = 1
	cgroupSet     = 2
)

const (
	// imageVersion is that of the layout of images that package criuimage knows.
	imageVersion = 2
	// lockSkip is CRIU's number for a network that it did not lock.
	lockSkip = 2
	// The keys by which runc passes namespaces.
	netKey = "extRootNetNS"
	pidKey = "extRootPidNS"
	// maxPipe bounds the content of a pipe: the kernel's limit for users.
	maxPipe = 1 << 20
)

// checkInventory refuses archives of another layout, and writes the description of what the request has.
func (f *fitting) checkInventory() error {
	const name = "inventory.img"
	in, err := f.open(name, inventoryKind)
	if err != nil {
		return err
	}
	e := &inventory.InventoryEntry{}
	if err := in.next(e); err != nil {
		return err
	}
	switch {
	case e.GetImgVersion() != imageVersion || !e.GetFdinfoPerId() || !e.GetNsPerId():
		return unsupported(in.name, "images of version %d of CRIU", e.GetImgVersion())
	case len(e.GetPluginsEntry().GetPlugins()) > 0:
		return unsupported(in.name, "plugins of CRIU: %.100q", e.GetPluginsEntry().GetPlugins())
	case e.GetTcpClose():
		return unsupported(in.name, "connections that were closed")
	}
	written := &inventory.InventoryEntry{
		ImgVersion: proto.Uint32(imageVersion), FdinfoPerId: proto.Bool(true), NsPerId: proto.Bool(true),
		RootIds: &criucore.TaskKobjIdsEntry{
			VmId: proto.Uint32(1), FilesId: proto.Uint32(1), FsId: proto.Uint32(1), SighandId: proto.Uint32(1),
			PidNsId: proto.Uint32(hostPidNS), NetNsId: proto.Uint32(hostNetNS), IpcNsId: proto.Uint32(hostIPCNS), UtsNsId: proto.Uint32(hostUTSNS),
			TimeNsId: proto.Uint32(hostTimeNS), MntNsId: proto.Uint32(hostMntNS), UserNsId: proto.Uint32(hostUserNS), CgroupNsId: proto.Uint32(hostCgroupNS),
		},
		RootCgSet: proto.Uint32(hostCgroupSet), Lsmtype: inventory.Lsmtype_NO_LSM.Enum(), NetworkLockMethod: proto.Uint32(lockSkip),
	}
	switch p := f.Spec.Process; {
	case p.ApparmorProfile != "":
		written.Lsmtype = inventory.Lsmtype_APPARMOR.Enum()
	case p.SelinuxLabel != "":
		written.Lsmtype = inventory.Lsmtype_SELINUX.Enum()
	}
	return saveOne(f.at(name), inventoryKind, written)
}

// fitIDs refuses a process with namespaces that are not those of the init, and gives it those of the request.
func (f *fitting) fitIDs(pid uint32) error {
	name := fmt.Sprintf("ids-%d.img", pid)
	ids, init := f.ids[pid], f.ids[f.tree[0].GetPid()]
	for _, each := range []struct {
		kind      string
		own, init uint32
	}{
		{"PID", ids.GetPidNsId(), init.GetPidNsId()},
		{"network", ids.GetNetNsId(), init.GetNetNsId()},
		{"IPC", ids.GetIpcNsId(), init.GetIpcNsId()},
		{"UTS", ids.GetUtsNsId(), init.GetUtsNsId()},
		{"mount", ids.GetMntNsId(), init.GetMntNsId()},
		{"user", ids.GetUserNsId(), init.GetUserNsId()},
		{"cgroup", ids.GetCgroupNsId(), init.GetCgroupNsId()},
		{"time", ids.GetTimeNsId(), init.GetTimeNsId()},
	} {
		if each.own != each.init && pid != f.tree[0].GetPid() {
			return unsupported(prefix+name, "process %d has a %s namespace of its own", pid, each.kind)
		}
	}
	kept := &criucore.TaskKobjIdsEntry{
		VmId: ids.VmId, FilesId: ids.FilesId, FsId: ids.FsId, SighandId: ids.SighandId,
		PidNsId: proto.Uint32(hostPidNS), NetNsId: proto.Uint32(hostNetNS), TimeNsId: proto.Uint32(hostTimeNS), MntNsId: proto.Uint32(mntNS),
		// runc lets CRIU join those of the pod; nothing of them is made again.
		IpcNsId: proto.Uint32(hostIPCNS), UtsNsId: proto.Uint32(hostUTSNS), UserNsId: proto.Uint32(hostUserNS), CgroupNsId: proto.Uint32(hostCgroupNS),
	}
	if _, has := oneOf(f.Spec, specs.PIDNamespace); has {
		kept.PidNsId = proto.Uint32(pidNS)
	}
	if _, has := oneOf(f.Spec, specs.NetworkNamespace); has {
		kept.NetNsId = proto.Uint32(netNS)
	}
	if _, has := oneOf(f.Spec, specs.CgroupNamespace); has {
		kept.CgroupNsId = proto.Uint32(cgroupNS)
	}
	f.ids[pid].FilesId = kept.FilesId
	return saveOne(f.at("%s", name), "IDS", kept)
}

// writeNamespaces writes that namespaces of the pod are used.
func (f *fitting) writeNamespaces() error {
	if path, has := oneOf(f.Spec, specs.NetworkNamespace); has && path != "" {
		if err := saveOne(f.at("netns-%d.img", netNS), "NETNS", &netdev.NetnsEntry{ExtKey: proto.String(netKey)}); err != nil {
			return err
		}
	}
	if path, has := oneOf(f.Spec, specs.PIDNamespace); has && path != "" {
		return saveOne(f.at("pidns-%d.img", pidNS), "PIDNS", &pidns.PidnsEntry{ExtKey: proto.String(pidKey)})
	}
	return nil
}

// fitClocks takes the clocks of the processes. CRIU makes a time namespace in which they go on.
func (f *fitting) fitClocks() error {
	const name = "timens-0.img"
	if !f.names[name] {
		return nil
	}
	in, err := f.open(name, "TIMENS")
	if err != nil {
		return err
	}
	e := &timens.TimensEntry{}
	if err := in.next(e); err != nil {
		return err
	}
	// The kernel refuses offsets that lead to more than half of its range: 146 years.
	const longest = 100 * 365 * 24 * 3600
	for _, t := range []*timens.Timespec{e.GetMonotonic(), e.GetBoottime()} {
		if t.GetTvSec() > longest || t.GetTvNsec() >= 1e9 {
			return bad(in.name, "a clock shows %d.%09d seconds", t.GetTvSec(), t.GetTvNsec())
		}
	}
	return saveOne(f.at(name), "TIMENS", e)
}

// fitPipes takes what is in pipes.
func (f *fitting) fitPipes() error {
	const name = "pipes-data.img"
	if !f.names[name] {
		return nil
	}
	in, err := f.open(name, "PIPES_DATA")
	if err != nil {
		return err
	}
	w := newWritten("PIPES_DATA")
	for in.more() {
		e := &pipedata.PipeDataEntry{}
		if err := in.next(e); err != nil {
			return err
		}
		if !f.pipes[e.GetPipeId()] || e.GetBytes() > maxPipe || e.GetSize() > maxPipe || e.GetSize() != 0 && e.GetBytes() > e.GetSize() {
			return bad(in.name, "pipe %d has %d of %d bytes, or is not there", e.GetPipeId(), e.GetBytes(), e.GetSize())
		}
		content, err := in.take(0, int64(e.GetBytes()))
		if err != nil {
			return err
		}
		if err := w.add(e, content...); err != nil {
			return err
		}
	}
	return save(f.at(name), w.data)
}
