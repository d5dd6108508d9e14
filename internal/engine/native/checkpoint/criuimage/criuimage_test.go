package criuimage

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/creds"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/fdinfo"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/fown"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/fs"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/inventory"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/mm"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/mnt"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/pagemap"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/pipe"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/pstree"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/regfile"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/rlimit"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/timer"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/vma"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	corex86 "github.com/checkpoint-restore/go-criu/v8/crit/images/core-x86"
	criucore "github.com/checkpoint-restore/go-criu/v8/crit/images/criu-core"
	unixsk "github.com/checkpoint-restore/go-criu/v8/crit/images/sk-unix"

	"github.com/berthrun/berth/internal/errs"
)

// parts are the images of one process that has a program, a memory page and two pipes.
type parts struct {
	inventory *inventory.InventoryEntry
	tree      []*pstree.PstreeEntry
	core      *criucore.CoreEntry
	ids       *criucore.TaskKobjIdsEntry
	mm        *mm.MmEntry
	fs        *fs.FsEntry
	files     []*fdinfo.FileEntry
	fds       []*fdinfo.FdinfoEntry
	mounts    []*mnt.MntEntry
	pages     []*pagemap.PagemapEntry
	memory    []byte
	// raw are files as they are, "" for one that is missing.
	raw map[string]string
}

func owner() *fown.FownEntry {
	return &fown.FownEntry{Uid: proto.Uint32(0), Euid: proto.Uint32(0), Signum: proto.Uint32(0), PidType: proto.Uint32(0), Pid: proto.Uint32(0)}
}

func regular(id uint32, name string, mount int32) *fdinfo.FileEntry {
	return &fdinfo.FileEntry{Type: fdinfo.FdTypes_REG.Enum(), Id: proto.Uint32(id), Reg: &regfile.RegFileEntry{
		Id: proto.Uint32(id), Flags: proto.Uint32(0), Pos: proto.Uint64(0), Fown: owner(), Name: proto.String(name), MntId: proto.Int32(mount),
	}}
}

func pipeFile(id, number uint32) *fdinfo.FileEntry {
	return &fdinfo.FileEntry{Type: fdinfo.FdTypes_PIPE.Enum(), Id: proto.Uint32(id), Pipe: &pipe.PipeEntry{
		Id: proto.Uint32(id), PipeId: proto.Uint32(number), Flags: proto.Uint32(unix.O_RDWR), Fown: owner(),
	}}
}

func descriptor(fd, id uint32, kind fdinfo.FdTypes) *fdinfo.FdinfoEntry {
	return &fdinfo.FdinfoEntry{Id: proto.Uint32(id), Flags: proto.Uint32(0), Type: kind.Enum(), Fd: proto.Uint32(fd)}
}

func mounted(id, parent uint32, at string) *mnt.MntEntry {
	return &mnt.MntEntry{
		Fstype: proto.Uint32(0), MntId: proto.Uint32(id), RootDev: proto.Uint32(id), ParentMntId: proto.Uint32(parent), Flags: proto.Uint32(0),
		Root: proto.String("/"), Mountpoint: proto.String(at), Source: proto.String("s"), Options: proto.String(""),
	}
}

func namespaces(first uint32) *criucore.TaskKobjIdsEntry {
	n := func(i uint32) *uint32 { return proto.Uint32(first + i) }
	return &criucore.TaskKobjIdsEntry{
		VmId: n(0), FilesId: proto.Uint32(2), FsId: n(0), SighandId: n(0), PidNsId: n(1), NetNsId: n(2), IpcNsId: n(3), UtsNsId: n(4), MntNsId: n(5),
		UserNsId: n(6), CgroupNsId: n(7), TimeNsId: n(8),
	}
}

// someCaps are the capabilities of the request.
const someCaps = 1<<unix.CAP_CHOWN | 1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID

func whole() *parts {
	regs := &corex86.UserX86RegsEntry{Mode: corex86.UserX86RegsMode_NATIVE.Enum()}
	for _, field := range []**uint64{
		&regs.R15, &regs.R14, &regs.R13, &regs.R12, &regs.Bp, &regs.Bx, &regs.R11, &regs.R10, &regs.R9, &regs.R8, &regs.Ax, &regs.Cx, &regs.Dx, &regs.Si,
		&regs.Di, &regs.OrigAx, &regs.Ip, &regs.Cs, &regs.Flags, &regs.Sp, &regs.Ss, &regs.FsBase, &regs.GsBase, &regs.Ds, &regs.Es, &regs.Fs, &regs.Gs,
	} {
		*field = proto.Uint64(0)
	}
	fp := &corex86.UserX86FpregsEntry{
		Cwd: proto.Uint32(0), Swd: proto.Uint32(0), Twd: proto.Uint32(0), Fop: proto.Uint32(0), Rip: proto.Uint64(0), Rdp: proto.Uint64(0),
		Mxcsr: proto.Uint32(0), MxcsrMask: proto.Uint32(0),
	}
	none := func() *timer.ItimerEntry {
		return &timer.ItimerEntry{Isec: proto.Uint64(0), Iusec: proto.Uint64(0), Vsec: proto.Uint64(0), Vusec: proto.Uint64(0)}
	}
	zero, u64 := proto.Uint32(0), func() *uint64 { return proto.Uint64(0x1000) }
	caps := []uint32{someCaps, 0}
	p := &parts{
		inventory: &inventory.InventoryEntry{ImgVersion: proto.Uint32(2), FdinfoPerId: proto.Bool(true), NsPerId: proto.Bool(true), RootIds: namespaces(1)},
		tree: []*pstree.PstreeEntry{{
			Pid: proto.Uint32(1), Ppid: proto.Uint32(0), Pgid: proto.Uint32(1), Sid: proto.Uint32(1), Threads: []uint32{1},
		}},
		ids: namespaces(20),
		core: &criucore.CoreEntry{
			Mtype:      criucore.CoreEntry_X86_64.Enum(),
			ThreadInfo: &corex86.ThreadInfoX86{ClearTidAddr: proto.Uint64(0), Gpregs: regs, Fpregs: fp},
			Tc: &criucore.TaskCoreEntry{
				TaskState: proto.Uint32(1), ExitCode: zero, Personality: zero, Flags: zero, BlkSigset: proto.Uint64(0), Comm: proto.String("sh"), Loginuid: proto.Uint32(7),
				Timers: &timer.TaskTimersEntry{Real: none(), Virt: none(), Prof: none()}, OomScoreAdj: proto.Int32(-1000), CgSet: proto.Uint32(9),
				Rlimits: &criucore.TaskRlimitsEntry{Rlimits: []*rlimit.RlimitEntry{{Cur: proto.Uint64(math.MaxUint64), Max: proto.Uint64(math.MaxUint64)}}},
			},
			ThreadCore: &criucore.ThreadCoreEntry{
				FutexRla: proto.Uint64(0), FutexRlaLen: zero, SeccompMode: criucore.SeccompMode_disabled.Enum(), CgSet: proto.Uint32(9),
				Creds: &creds.CredsEntry{
					Uid: zero, Gid: zero, Euid: zero, Egid: zero, Suid: zero, Sgid: zero, Fsuid: zero, Fsgid: zero, Secbits: zero,
					CapInh: []uint32{0, 0}, CapPrm: caps, CapEff: caps, CapBnd: caps, LsmProfile: proto.String("unconfined"),
				},
			},
		},
		mm: &mm.MmEntry{
			MmStartCode: u64(), MmEndCode: u64(), MmStartData: u64(), MmEndData: u64(), MmStartStack: u64(), MmStartBrk: u64(), MmBrk: u64(), MmArgStart: u64(),
			MmArgEnd: u64(), MmEnvStart: u64(), MmEnvEnd: u64(), ExeFileId: proto.Uint32(1),
			Vmas: []*vma.VmaEntry{
				{Start: proto.Uint64(0x400000), End: proto.Uint64(0x401000), Pgoff: proto.Uint64(0), Shmid: proto.Uint64(1), Prot: proto.Uint32(5), Flags: proto.Uint32(2), Status: proto.Uint32(65), Fd: proto.Int64(-1)},
				{Start: proto.Uint64(0x500000), End: proto.Uint64(0x502000), Pgoff: proto.Uint64(0), Shmid: proto.Uint64(0), Prot: proto.Uint32(3), Flags: proto.Uint32(34), Status: proto.Uint32(513), Fd: proto.Int64(-1)},
			},
		},
		fs:    &fs.FsEntry{CwdId: proto.Uint32(5), RootId: proto.Uint32(5), Umask: proto.Uint32(18)},
		files: []*fdinfo.FileEntry{regular(1, "/bin/sh", 10), regular(2, "/dev/null", 11), pipeFile(3, 77), pipeFile(4, 78), regular(5, "/", 10)},
		fds: []*fdinfo.FdinfoEntry{
			descriptor(0, 2, fdinfo.FdTypes_REG), descriptor(1, 3, fdinfo.FdTypes_PIPE), descriptor(2, 4, fdinfo.FdTypes_PIPE),
		},
		mounts: []*mnt.MntEntry{mounted(11, 10, "/dev"), mounted(12, 10, "/proc"), mounted(10, 1, "/")},
		pages:  []*pagemap.PagemapEntry{{Vaddr: proto.Uint64(0x500000), CompatNrPages: proto.Uint32(1), Flags: proto.Uint32(4)}},
		memory: make([]byte, pageSize), raw: map[string]string{},
	}
	return p
}

// write writes the images into a directory.
func (p *parts) write(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	add := func(name, kind string, messages ...proto.Message) {
		t.Helper()
		w := newWritten(kind)
		for _, m := range messages {
			if err := w.add(m); err != nil {
				t.Fatal(err)
			}
		}
		if err := save(filepath.Join(dir, name), w.data); err != nil {
			t.Fatal(err)
		}
	}
	list := func(n int, at func(i int) proto.Message) (all []proto.Message) {
		for i := range n {
			all = append(all, at(i))
		}
		return all
	}
	add("inventory.img", "INVENTORY", p.inventory)
	add("pstree.img", "PSTREE", list(len(p.tree), func(i int) proto.Message { return p.tree[i] })...)
	add("core-1.img", "CORE", p.core)
	add("ids-1.img", "IDS", p.ids)
	add("mm-1.img", "MM", p.mm)
	add("fs-1.img", "FS", p.fs)
	add("files.img", "FILES", list(len(p.files), func(i int) proto.Message { return p.files[i] })...)
	add("fdinfo-2.img", "FDINFO", list(len(p.fds), func(i int) proto.Message { return p.fds[i] })...)
	add("mountpoints-13.img", "MNTS", list(len(p.mounts), func(i int) proto.Message { return p.mounts[i] })...)
	add("pagemap-1.img", "PAGEMAP", append([]proto.Message{&pagemap.PagemapHead{PagesId: proto.Uint32(1)}}, list(len(p.pages), func(i int) proto.Message { return p.pages[i] })...)...)
	p.raw["pages-1.img"] = string(p.memory)
	for name, content := range p.raw {
		path := filepath.Join(dir, name)
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
		if target, link := strings.CutPrefix(content, "-> "); link {
			if err := os.Symlink(target, path); err != nil {
				t.Fatal(err)
			}
		} else if content != "" {
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

// request is for a container of root with some capabilities and a seccomp filter.
func request(t *testing.T) *Request {
	t.Helper()
	if runtime.GOARCH != "amd64" {
		t.Skip("the images are of amd64") //nolint:forbidigo // not an ability of a host
	}
	root := t.TempDir()
	for name, mode := range map[string]os.FileMode{"bin/sh": 0o755, "secret": 0o600, "open": 0o644} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("x"), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/proc/sysrq-trigger", filepath.Join(root, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(root, "closed"), 0o711); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(root, "fifo"), 0o644); err != nil {
		t.Fatal(err)
	}
	caps, score := []string{"CAP_CHOWN", "CAP_SETUID", "CAP_SETGID"}, 500
	return &Request{
		Rootfs: root,
		Limits: func(int) uint64 { return 1000 },
		Spec: &specs.Spec{
			Root:    &specs.Root{Path: root},
			Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: caps, Permitted: caps, Effective: caps}, OOMScoreAdj: &score},
			Mounts: []specs.Mount{
				{Destination: "/proc", Type: "proc", Options: []string{"nosuid"}},
				{Destination: "/dev", Type: "tmpfs", Options: []string{"mode=755"}},
				{Destination: "/data", Type: "bind", Source: t.TempDir(), Options: []string{"rbind", "ro"}},
			},
			Linux: &specs.Linux{
				Namespaces: []specs.LinuxNamespace{{Type: "mount"}, {Type: "pid"}, {Type: "network", Path: "/run/netns/x"}, {Type: "ipc", Path: "/x/ipc"}},
				Seccomp:    &specs.LinuxSeccomp{DefaultAction: specs.ActErrno},
			},
		},
	}
}

// encoded is an image of one message.
func encoded(m proto.Message, kind string) string {
	w := newWritten(kind)
	if err := w.add(m); err != nil {
		panic(err)
	}
	return string(w.data)
}

// bomb is an image of one message with many empty parts of a field.
func bomb(kind string, field protowire.Number, parts int) string {
	part := protowire.AppendBytes(protowire.AppendTag(nil, field, protowire.BytesType), nil)
	return bombOf(kind, bytes.Repeat(part, parts))
}

// bombOfNumbers is an image of one message with numbers that have a byte each.
func bombOfNumbers(kind string, numbers int) string {
	return bombOf(kind, protowire.AppendBytes(protowire.AppendTag(nil, 5, protowire.BytesType), make([]byte, numbers)))
}

func bombOf(kind string, message []byte) string {
	data := binary.LittleEndian.AppendUint32(newWritten(kind).data, uint32(len(message)))
	return string(append(data, message...))
}

// read decodes the only message of a file that Fit has written.
func read(t *testing.T, dir, name, kind string, m proto.Message) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	in, err := newImage(name, kind, data)
	if err == nil {
		err = in.next(m)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestTheRequestDecides: what CRIU reads has the namespaces, mounts, limits, filters and labels of the request, whatever the
// archive says.
func TestTheRequestDecides(t *testing.T) {
	p, r, to := whole(), request(t), t.TempDir()
	// A private area of no file, which CRIU would map from its own descriptor 5.
	p.mm.Vmas[1].Fd, p.mm.Vmas[1].Flags = proto.Int64(5), proto.Uint32(unix.MAP_SHARED)
	p.core.ThreadCore.PdeathSig = proto.Uint32(uint32(unix.SIGCONT))
	fitted, err := Fit(t.Context(), p.write(t), to, r)
	if err != nil {
		t.Fatal(err)
	}
	if fitted.Stdio != [3]string{"/dev/null", "pipe:[77]", "pipe:[78]"} || fitted.Tasks != 1 {
		t.Errorf("fitted %+v", fitted)
	}
	core := &criucore.CoreEntry{}
	read(t, to, "core-1.img", "CORE", core)
	tc, thread := core.GetTc(), core.GetThreadCore()
	if limit := tc.GetRlimits().GetRlimits()[0]; limit.GetMax() != 1000 || tc.GetOomScoreAdj() != 500 || tc.Loginuid != nil || tc.GetCgSet() != cgroupSet {
		t.Errorf("the process %v", tc)
	}
	if thread.GetSeccompMode() != criucore.SeccompMode_filter || thread.GetCreds().LsmProfile != nil || thread.GetCgSet() != cgroupSet {
		t.Errorf("the thread %v", thread)
	}
	memory := &mm.MmEntry{}
	read(t, to, "mm-1.img", "MM", memory)
	if anon := memory.GetVmas()[1]; anon.GetFd() != -1 || anon.GetFlags() != unix.MAP_PRIVATE|unix.MAP_ANONYMOUS {
		t.Errorf("CRIU maps descriptor %d with the flags %#x", anon.GetFd(), anon.GetFlags())
	}
	if thread.GetPdeathSig() != 0 {
		t.Error("the init gets a signal when the OCI runtime ends")
	}
	ids, inv := &criucore.TaskKobjIdsEntry{}, &inventory.InventoryEntry{}
	read(t, to, "ids-1.img", "IDS", ids)
	read(t, to, "inventory.img", "INVENTORY", inv)
	root := inv.GetRootIds()
	if ids.GetUserNsId() != root.GetUserNsId() || ids.GetIpcNsId() != root.GetIpcNsId() || ids.GetPidNsId() == root.GetPidNsId() || ids.GetNetNsId() != netNS {
		t.Errorf("namespaces %v of %v", ids, root)
	}
	data, err := os.ReadFile(filepath.Join(to, "mountpoints-11.img"))
	if err != nil {
		t.Fatal(err)
	}
	places := map[string]*mnt.MntEntry{}
	for in, err := newImage("m", "MNTS", data); err == nil && in.more(); {
		m := &mnt.MntEntry{}
		if err = in.next(m); err != nil {
			t.Fatal(err)
		}
		places[m.GetMountpoint()] = m
	}
	if len(places) != 4 || places["/data"].GetExtKey() != "/data" || places["/data"].GetFlags()&unix.MS_RDONLY == 0 || places["/proc"].GetFlags()&unix.MS_NOSUID == 0 {
		t.Errorf("mounts %v", places)
	}
	for _, name := range []string{"seccomp.img", "cgroup.img"} {
		if _, err := os.Stat(filepath.Join(to, name)); err == nil {
			t.Errorf("%s is there: the supervisor writes it", name)
		}
	}
}

// TestHostileImages: what exceeds the request, or is on no list, is refused with the name of its entry.
func TestHostileImages(t *testing.T) {
	credsOf := func(p *parts) *creds.CredsEntry { return p.core.GetThreadCore().GetCreds() }
	ofUser := func(r *Request) {
		r.Spec.Process.User.UID, r.Spec.Process.User.GID = 1000, 1000
		r.Spec.Process.NoNewPrivileges = true
	}
	user := func(p *parts) {
		c := credsOf(p)
		id := proto.Uint32(1000)
		c.Uid, c.Euid, c.Suid, c.Fsuid, c.Gid, c.Egid, c.Sgid, c.Fsgid = id, id, id, id, id, id, id, id
		c.CapPrm, c.CapEff = []uint32{0, 0}, []uint32{0, 0}
	}
	mapShared := func(p *parts, prot uint32, flags *uint32) {
		user(p)
		p.files = append(p.files, regular(9, "/open", 10))
		p.mm.Vmas = append(p.mm.Vmas, &vma.VmaEntry{
			Start: proto.Uint64(0x700000), End: proto.Uint64(0x701000), Pgoff: proto.Uint64(0), Shmid: proto.Uint64(9), Prot: &prot,
			Flags: proto.Uint32(unix.MAP_SHARED), Status: proto.Uint32(areaRegular | areaFileShared), Fd: proto.Int64(-1), Fdflags: flags,
		})
	}
	for name, c := range map[string]struct {
		change  func(p *parts)
		request func(r *Request)
		words   string
	}{
		"root for a user":                {func(*parts) {}, ofUser, "checkpoint/core-1.img: user 0"},
		"capabilities of a user":         {func(p *parts) { user(p); credsOf(p).CapPrm = []uint32{1, 0} }, ofUser, "checkpoint/core-1.img: permitted capabilities 0x1"},
		"group of a user":                {func(p *parts) { user(p); credsOf(p).Groups = []uint32{0} }, ofUser, "checkpoint/core-1.img: group 0"},
		"a file of root for a user":      {func(p *parts) { user(p); p.files = append(p.files, regular(9, "/secret", 10)) }, ofUser, "checkpoint/files.img: file /secret"},
		"effective capabilities":         {func(p *parts) { credsOf(p).CapEff = []uint32{1 << unix.CAP_SYS_ADMIN, 0} }, nil, "checkpoint/core-1.img: effective capabilities 0x200000"},
		"bounding capabilities":          {func(p *parts) { credsOf(p).CapBnd = []uint32{0, 1} }, nil, "checkpoint/core-1.img: bounding capabilities"},
		"ambient capabilities":           {func(p *parts) { credsOf(p).CapAmb = []uint32{1, 0} }, nil, "checkpoint/core-1.img: ambient capabilities"},
		"too many words of capabilities": {func(p *parts) { credsOf(p).CapInh = make([]uint32, 64) }, nil, "has 64 words"},
		"no credentials":                 {func(p *parts) { p.core.ThreadCore.Creds = nil }, nil, "checkpoint/core-1.img: it has no credentials"},
		"securebits":                     {func(p *parts) { credsOf(p).Secbits = proto.Uint32(1) }, nil, "securebits"},
		"real-time scheduling":           {func(p *parts) { p.core.ThreadCore.SchedPolicy = proto.Uint32(unix.SCHED_FIFO) }, nil, "checkpoint/core-1.img: it is scheduled"},
		"a negative nice value":          {func(p *parts) { p.core.ThreadCore.SchedNice = proto.Int32(-20) }, nil, "nice value -20"},
		"a personality":                  {func(p *parts) { p.core.Tc.Personality = proto.Uint32(0x0400000) }, nil, "personality"},
		"a timer that wakes the host": {func(p *parts) {
			z := func() *uint32 { return proto.Uint32(0) }
			l := func() *uint64 { return proto.Uint64(0) }
			p.core.Tc.Timers.Posix = []*timer.PosixTimerEntry{{
				ItId: z(), ClockId: proto.Uint32(unix.CLOCK_BOOTTIME_ALARM), SiSigno: z(), ItSigevNotify: z(), SivalPtr: l(), Overrun: z(), Isec: l(), Insec: l(), Vsec: l(), Vnsec: l(),
			}}
		}, nil, "a timer of clock 9"},
		"SIGCONT at the end of a parent": {func(p *parts) {
			child := proto.Clone(p.core).(*criucore.CoreEntry)
			child.ThreadCore.PdeathSig = proto.Uint32(uint32(unix.SIGCONT))
			p.tree = append(p.tree, &pstree.PstreeEntry{Pid: proto.Uint32(2), Ppid: proto.Uint32(1), Pgid: proto.Uint32(1), Sid: proto.Uint32(1), Threads: []uint32{2}})
			p.raw["core-2.img"], p.raw["ids-2.img"] = encoded(child, "CORE"), encoded(p.ids, "IDS")
		}, nil, "checkpoint/core-2.img: a signal SIGCONT"},
		"a stopped process":          {func(p *parts) { p.core.Tc.TaskState = proto.Uint32(3) }, nil, "state 3"},
		"a session outside":          {func(p *parts) { p.tree[0].Sid = proto.Uint32(4711) }, nil, "checkpoint/pstree.img: process 1 belongs to session 4711"},
		"a parent outside":           {func(p *parts) { p.tree[0].Ppid = proto.Uint32(4711) }, nil, "checkpoint/pstree.img: process 1 has the parent 4711"},
		"another init":               {func(p *parts) { p.tree[0].Pid, p.tree[0].Threads = proto.Uint32(2), nil }, nil, "checkpoint/pstree.img: process 2 belongs"},
		"a mount of the host":        {func(p *parts) { p.mounts = append(p.mounts, mounted(13, 10, "/host")) }, nil, `checkpoint/mountpoints-13.img: a mount at "/host"`},
		"a mount by way of procfs":   {func(p *parts) { p.mounts = append(p.mounts, mounted(13, 10, "/proc/../host")) }, nil, "checkpoint/mountpoints-13.img"},
		"a second mount namespace":   {func(p *parts) { p.raw["mountpoints-14.img"] = "x" }, nil, "2 mount namespaces"},
		"a file on a volume":         {func(p *parts) { p.files = append(p.files, regular(9, "/data/x", 10)) }, nil, "checkpoint/files.img: file /data/x is on the mount /data"},
		"a file of procfs":           {func(p *parts) { p.files = append(p.files, regular(9, "/proc/sysrq-trigger", 12)) }, nil, "checkpoint/files.img: file /proc/sysrq-trigger"},
		"a device":                   {func(p *parts) { p.files = append(p.files, regular(9, "/dev/sda", 11)) }, nil, "checkpoint/files.img: file /dev/sda"},
		"a symbolic link":            {func(p *parts) { p.files = append(p.files, regular(9, "/link", 10)) }, nil, "checkpoint/files.img: file /link"},
		"a FIFO":                     {func(p *parts) { p.files = append(p.files, regular(9, "/fifo", 10)) }, nil, "checkpoint/files.img: file /fifo"},
		"a path that leads out":      {func(p *parts) { p.files = append(p.files, regular(9, "/../etc/shadow", 10)) }, nil, "checkpoint/files.img: file 9 has the path"},
		"a file on another mount":    {func(p *parts) { p.files = append(p.files, regular(9, "/open", 99)) }, nil, "not on the mount that its path is on"},
		"a file that is cut":         {func(p *parts) { p.files[0].Reg.Flags = proto.Uint32(unix.O_TRUNC) }, nil, "open with the flags"},
		"signals to another process": {func(p *parts) { p.files[2].Pipe.Fown.Pid = proto.Uint32(1) }, nil, "sends signals to process 1"},
		"a socket": {func(p *parts) {
			p.files = append(p.files, &fdinfo.FileEntry{Type: fdinfo.FdTypes_UNIXSK.Enum(), Id: proto.Uint32(9), Usk: (*unixsk.UnixSkEntry)(nil)})
		}, nil, "checkpoint/files.img: file 9 is of the kind UNIXSK"},
		"a namespace file": {func(p *parts) {
			p.files = append(p.files, &fdinfo.FileEntry{Type: fdinfo.FdTypes_NS.Enum(), Id: proto.Uint32(9)})
		}, nil, "kind NS"},
		"a file without its part": {func(p *parts) {
			p.files = append(p.files, &fdinfo.FileEntry{Type: fdinfo.FdTypes_EVENTFD.Enum(), Id: proto.Uint32(9)})
		}, nil, "checkpoint/files.img: file 9 is not of the kind EVENTFD"},
		"a descriptor of no file":                     {func(p *parts) { p.fds = append(p.fds, descriptor(7, 4711, fdinfo.FdTypes_REG)) }, nil, "checkpoint/fdinfo-2.img: descriptor 7"},
		"another root directory":                      {func(p *parts) { p.fs.RootId = proto.Uint32(1) }, nil, "checkpoint/fs-1.img: the root directory"},
		"a program that is a device":                  {func(p *parts) { p.mm.ExeFileId = proto.Uint32(2) }, nil, "checkpoint/mm-1.img: the program"},
		"memory of no file":                           {func(p *parts) { p.mm.Vmas[0].Shmid = proto.Uint64(4711) }, nil, "checkpoint/mm-1.img: area 0x400000 is of file 4711"},
		"a file of root that a user writes in memory": {func(p *parts) { mapShared(p, unix.PROT_READ, proto.Uint32(unix.O_RDWR)) }, ofUser, "checkpoint/mm-1.img: area 0x700000: file /open: the user of the request may not open it"},
		"the same without flags":                      {func(p *parts) { mapShared(p, unix.PROT_WRITE, nil) }, ofUser, "checkpoint/mm-1.img: area 0x700000: file /open: the user of the request may not open it"},
		"memory of two kinds":                         {func(p *parts) { p.mm.Vmas[1].Status = proto.Uint32(areaRegular | areaAnonPrivate | areaAnonShared) }, nil, "checkpoint/mm-1.img: area 0x500000 has status 0x301"},
		"a directory that a user may not read": {func(p *parts) {
			user(p)
			p.files = append(p.files, regular(9, "/closed", 10))
			p.fds = append(p.fds, descriptor(7, 9, fdinfo.FdTypes_REG))
		}, ofUser, "checkpoint/fdinfo-2.img: descriptor 7 is of directory /closed"},
		"a message of many parts":           {func(p *parts) { p.raw["mm-1.img"] = bomb("MM", 14, maxParts+1) }, nil, "checkpoint/mm-1.img: message 1 has"},
		"many messages that are kept":       {func(p *parts) { p.raw["core-1.img"] = bomb("CORE", 3, maxParts+1) }, nil, "checkpoint/core-1.img: message 1 has"},
		"numbers that fill the memory":      {func(p *parts) { p.raw["pstree.img"] = bombOfNumbers("PSTREE", maxMessage+1) }, nil, "checkpoint/pstree.img: message 1 has"},
		"memory over other memory":          {func(p *parts) { p.mm.Vmas[1].Start = proto.Uint64(0x400000) }, nil, "checkpoint/mm-1.img: area 0x400000 ends"},
		"memory of a socket":                {func(p *parts) { p.mm.Vmas[1].Status = proto.Uint32(1 << 11) }, nil, "checkpoint/mm-1.img: area 0x500000 has status"},
		"locked memory":                     {func(p *parts) { p.mm.Vmas[1].Flags = proto.Uint32(unix.MAP_LOCKED | 34) }, nil, "checkpoint/mm-1.img: area 0x500000"},
		"pages outside of the memory":       {func(p *parts) { p.pages[0].Vaddr = proto.Uint64(0x600000) }, nil, "checkpoint/pagemap-1.img: 1 pages at 0x600000"},
		"a huge number of pages":            {func(p *parts) { p.pages[0].NrPages = proto.Uint64(math.MaxUint64) }, nil, "checkpoint/pagemap-1.img"},
		"pages of another archive":          {func(p *parts) { p.pages[0].Flags = proto.Uint32(1) }, nil, "another archive"},
		"pages that are missing":            {func(p *parts) { p.memory = p.memory[:100] }, nil, "checkpoint/pages-1.img: it has 100 bytes"},
		"a program of another architecture": {func(p *parts) { p.core.Mtype, p.core.ThreadInfo = criucore.CoreEntry_AARCH64.Enum(), nil }, nil, "checkpoint/core-1.img: its program is for the architecture AARCH64, and this node is amd64"},
		"a plugin":                          {func(p *parts) { p.inventory.PluginsEntry = &inventory.PluginsEntry{Plugins: []string{"amdgpu"}} }, nil, "checkpoint/inventory.img: plugins"},
		"another version":                   {func(p *parts) { p.inventory.ImgVersion = proto.Uint32(1) }, nil, "checkpoint/inventory.img: images of version 1"},
		"a file that is not an image":       {func(p *parts) { p.raw["core-1.img"] = "nonsense" }, nil, "checkpoint/core-1.img: it is not an image"},
		"an image that is cut":              {func(p *parts) { p.raw["core-1.img"] = string(newWritten("CORE").data) + "\xff\xff\xff\xff" }, nil, "checkpoint/core-1.img: it ends in a message"},
		"an image that is missing":          {func(p *parts) { p.raw["mm-1.img"] = "" }, nil, "checkpoint/mm-1.img: it is missing"},
		"an image that is a link":           {func(p *parts) { p.raw["core-1.img"] = "-> /etc/shadow" }, nil, "checkpoint/core-1.img: it is not a regular file"},
		"files that were removed":           {func(p *parts) { p.raw["ghost-file-1.img"] = "a file outside of everything" }, nil, "checkpoint/ghost-file-1.img: what such an image has"},
		"an AppArmor namespace":             {func(p *parts) { p.raw["apparmor.img"] = "a profile of the archive" }, nil, "checkpoint/apparmor.img"},
		"System V memory":                   {func(p *parts) { p.raw["ipcns-shm-11.img"] = "memory of the pod's" }, nil, "checkpoint/ipcns-shm-11.img"},
		"a network":                         {func(p *parts) { p.raw["route-10.img"] = "routes of the pod" }, nil, "checkpoint/route-10.img"},
		"an image of no process":            {func(p *parts) { p.raw["core-4711.img"] = "x" }, nil, "checkpoint/core-4711.img: it belongs to no process"},
	} {
		t.Run(name, func(t *testing.T) {
			p, r := whole(), request(t)
			c.change(p)
			if c.request != nil {
				c.request(r)
			}
			_, err := Fit(t.Context(), p.write(t), t.TempDir(), r)
			if err == nil || !strings.Contains(err.Error(), c.words) {
				t.Fatalf("%v, want %q", err, c.words)
			}
			if kind := errs.Kind(err); kind != errs.Invalid && kind != errs.Unsupported { //nolint:errorlint // Kind returns a sentinel
				t.Errorf("kind %v of %v", kind, err)
			}
		})
	}
}

// TestPagesInAreas: pages may be in several areas that follow one another.
func TestPagesInAreas(t *testing.T) {
	area := func(start, end uint64) *vma.VmaEntry { return &vma.VmaEntry{Start: &start, End: &end} }
	areas := []*vma.VmaEntry{area(10, 20), area(20, 30), area(40, 50)}
	for pages, want := range map[[2]uint64]bool{
		{10, 20}: true, {12, 30}: true, {25, 30}: true, {40, 50}: true,
		{5, 12}: false, {25, 31}: false, {25, 45}: false, {30, 41}: false, {45, 51}: false, {50, 60}: false,
	} {
		if got := inside(areas, pages[0], pages[1]); got != want {
			t.Errorf("pages %d in the areas: %v", pages, got)
		}
	}
}

// TestEndOfTheContext: a request that has ended stops the decoding.
func TestEndOfTheContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := errors.New("the request has ended")
	cancel(ended)
	if _, err := Fit(ctx, whole().write(t), t.TempDir(), request(t)); !errors.Is(err, ended) {
		t.Errorf("%v, want %v", err, ended)
	}
}

// FuzzFit: whatever an image has, Fit returns.
func FuzzFit(f *testing.F) {
	f.Add("core-1.img", []byte("\x19\x43\x56\x54"))
	f.Fuzz(func(t *testing.T, name string, data []byte) {
		if !known.MatchString(name) {
			return
		}
		p := whole()
		p.raw[name] = string(data)
		_, _ = Fit(t.Context(), p.write(t), t.TempDir(), request(t))
	})
}
