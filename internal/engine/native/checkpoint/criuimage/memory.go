package criuimage

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sort"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/fdinfo"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/mm"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/pagemap"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/vma"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

// The bits of an area's status, as CRIU has them.
const (
	areaRegular     = 1 << 0
	areaStack       = 1 << 1
	areaVsyscall    = 1 << 2
	areaVDSO        = 1 << 3
	areaHeap        = 1 << 5
	areaFilePrivate = 1 << 6
	areaFileShared  = 1 << 7
	areaAnonShared  = 1 << 8
	areaAnonPrivate = 1 << 9
	areaVVAR        = 1 << 12

	areaFile  = areaFilePrivate | areaFileShared
	areaKinds = areaRegular | areaStack | areaVsyscall | areaVDSO | areaHeap | areaFile | areaAnonShared | areaAnonPrivate | areaVVAR
)

const (
	pageSize = 4096
	// maxAddress is above all addresses of programs, but for the page vsyscall.
	maxAddress = 1 << 56
	// mapFlags are the flags of mappings that are restored. MAP_LOCKED would lock memory beyond the limit.
	mapFlags = unix.MAP_SHARED | unix.MAP_PRIVATE | unix.MAP_FIXED | unix.MAP_ANONYMOUS | unix.MAP_GROWSDOWN | unix.MAP_NORESERVE | unix.MAP_STACK
	// maxAreas bounds the areas of a process. The kernel's default is 65530.
	maxAreas = 1 << 18
	maxAuxv  = 128
	// The flags of pages: those in a parent image are refused.
	pageLazy    = 1 << 1
	pagePresent = 1 << 2
)

// fitMemory checks the areas of a process's memory, and takes its pages.
func (f *fitting) fitMemory(pid uint32) error {
	name := fmt.Sprintf("mm-%d.img", pid)
	in, err := f.open(name, "MM")
	if err != nil {
		return err
	}
	m := &mm.MmEntry{}
	if err := in.next(m); err != nil {
		return err
	}
	if exe := f.files[m.GetExeFileId()]; exe.kind != fdinfo.FdTypes_REG || exe.directory || isDevice(exe.path) {
		return bad(in.name, "the program of process %d is not a file", pid)
	}
	if len(m.GetAios()) > 0 {
		return unsupported(in.name, "asynchronous input and output")
	}
	if len(m.GetVmas()) > maxAreas || len(m.GetMmSavedAuxv()) > maxAuxv {
		return bad(in.name, "it has %d areas", len(m.GetVmas()))
	}
	if d := m.GetDumpable(); d < 0 || d > 1 {
		m.Dumpable = nil // 2 is for those that only root may dump
	}
	var last uint64
	for _, a := range m.GetVmas() {
		if f.ctx.Err() != nil {
			return context.Cause(f.ctx)
		}
		if err := f.fitArea(in.name, a, last); err != nil {
			return err
		}
		last = a.GetEnd()
	}
	if err := saveOne(f.at("%s", name), "MM", m); err != nil {
		return err
	}
	return f.fitPages(fmt.Sprintf("pagemap-%d.img", pid), func(start, end uint64) bool { return inside(m.GetVmas(), start, end) })
}

func (f *fitting) fitArea(name string, a *vma.VmaEntry, last uint64) error {
	place := fmt.Sprintf("area %#x", a.GetStart())
	vsyscall := a.GetStatus()&areaVsyscall != 0
	if a.GetStart()%pageSize != 0 || a.GetEnd()%pageSize != 0 || a.GetEnd() <= a.GetStart() || a.GetStart() < last || a.GetEnd() > maxAddress && !vsyscall {
		return bad(name, "%s ends at %#x, after one that ends at %#x", place, a.GetEnd(), last)
	}
	if a.GetStatus()&^areaKinds != 0 || a.GetFlags()&^mapFlags != 0 || a.GetProt()&^(unix.PROT_READ|unix.PROT_WRITE|unix.PROT_EXEC) != 0 {
		return unsupported(name, "%s has status %#x, flags %#x, protection %#x", place, a.GetStatus(), a.GetFlags(), a.GetProt())
	}
	if err := fitKind(name, place, a); err != nil {
		return err
	}
	if a.GetFdflags()&^openFlags != 0 {
		return bad(name, "%s has a file that is open with the flags %#x", place, a.GetFdflags())
	}
	switch {
	case a.GetStatus()&areaFile != 0:
		opened := f.files[uint32(a.GetShmid())] //nolint:gosec // compared below
		if a.GetShmid() > 1<<32-1 || opened.kind != fdinfo.FdTypes_REG || opened.directory {
			return bad(name, "%s is of file %d, which is not in %s", place, a.GetShmid(), filesName)
		}
		return f.fitMapped(name, place, a, opened)
	case a.GetStatus()&areaAnonShared != 0:
		f.shared[a.GetShmid()] = true
	}
	return nil
}

// fitKind sets the descriptor and the flags of an area by its kind alone. CRIU opens a file by the kind, and maps by the flags:
// an area that has both in two ways would map a descriptor of CRIU itself.
func fitKind(name, place string, a *vma.VmaEntry) error {
	kinds, flags := 0, uint32(unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	for kind, its := range map[uint32]uint32{
		areaFilePrivate: unix.MAP_PRIVATE, areaFileShared: unix.MAP_SHARED,
		areaAnonPrivate: unix.MAP_PRIVATE | unix.MAP_ANONYMOUS, areaAnonShared: unix.MAP_SHARED | unix.MAP_ANONYMOUS,
	} {
		if a.GetStatus()&kind != 0 {
			kinds++
			flags = its
		}
	}
	if kinds > 1 {
		return bad(name, "%s has status %#x: it is of %d kinds", place, a.GetStatus(), kinds)
	}
	a.Fd = proto.Int64(-1)
	a.Flags = proto.Uint32(a.GetFlags()&^(unix.MAP_SHARED|unix.MAP_PRIVATE|unix.MAP_ANONYMOUS) | flags)
	return nil
}

// fitMapped refuses a file in memory that the user of the request may not open so: CRIU opens it with the flags of the area,
// and not with those of the file.
func (f *fitting) fitMapped(name, place string, a *vma.VmaEntry, opened file) error {
	if a.Fdflags == nil { // CRIU would guess
		a.Fdflags = proto.Uint32(unix.O_RDONLY)
		if a.GetStatus()&areaFileShared != 0 && a.GetProt()&unix.PROT_WRITE != 0 {
			a.Fdflags = proto.Uint32(unix.O_RDWR)
		}
	}
	if isDevice(opened.path) {
		return nil
	}
	how := mapping{uint32(a.GetShmid()), a.GetFdflags()} //nolint:gosec // it is the number of a file
	if f.mapped[how] {
		return nil
	}
	if _, _, err := f.checkAccess(opened.path, a.GetFdflags()); err != nil {
		return bad(name, "%s: file %s: %v", place, opened.path, err)
	}
	f.mapped[how] = true
	return nil
}

// inside reports whether pages are in the areas, which are in the order of their addresses.
func inside(areas []*vma.VmaEntry, start, end uint64) bool {
	first := sort.Search(len(areas), func(i int) bool { return areas[i].GetEnd() > start })
	for _, a := range areas[first:] {
		switch {
		case start < a.GetStart():
			return false
		case end <= a.GetEnd():
			return true
		}
		start = a.GetEnd() // the next area may begin there
	}
	return false
}

// fitShared takes the pages of memory that processes share.
func (f *fitting) fitShared() error {
	for id := range f.shared {
		name := fmt.Sprintf("pagemap-shmem-%d.img", id)
		if !f.names[name] {
			continue // nothing was written to it
		}
		if err := f.fitPages(name, func(start, end uint64) bool { return start < end && end <= maxAddress }); err != nil {
			return err
		}
	}
	return nil
}

// fitPages checks which pages of memory there are, and takes the file with their content, which has to have as many.
func (f *fitting) fitPages(name string, has func(start, end uint64) bool) error {
	in, err := f.open(name, "PAGEMAP")
	if err != nil {
		return err
	}
	head := &pagemap.PagemapHead{}
	if err := in.next(head); err != nil {
		return err
	}
	w, last, present := newWritten("PAGEMAP"), uint64(0), uint64(0)
	if err := w.add(head); err != nil {
		return err
	}
	for in.more() {
		e := &pagemap.PagemapEntry{}
		if err := in.next(e); err != nil {
			return err
		}
		pages := e.GetNrPages()
		if e.NrPages == nil {
			pages = uint64(e.GetCompatNrPages())
		}
		start := e.GetVaddr()
		if pages == 0 || pages > maxAddress/pageSize || start%pageSize != 0 || start > maxAddress || start < last || !has(start, start+pages*pageSize) {
			return bad(in.name, "%d pages at %#x are in no area of the memory", pages, start)
		}
		if e.GetInParent() || e.GetFlags()&^(pageLazy|pagePresent) != 0 {
			return unsupported(in.name, "pages at %#x are in another archive", start)
		}
		if e.GetFlags()&pagePresent != 0 {
			present += pages
		}
		last = start + pages*pageSize
		if err := w.add(e); err != nil {
			return err
		}
	}
	if err := save(f.at("%s", name), w.data); err != nil {
		return err
	}
	return f.takePages(in.name, head.GetPagesId(), present)
}

func (f *fitting) takePages(from string, id uint32, pages uint64) error {
	name := fmt.Sprintf("pages-%d.img", id)
	if pages == 0 && !f.names[name] {
		return save(f.at("%s", name), nil)
	}
	info, err := os.Lstat(filepath.Join(f.from, name))
	if f.pages[id] || err != nil {
		return bad(from, "%s, with its pages, is missing, or is of another", name)
	}
	f.pages[id] = true
	if uint64(info.Size()) != pages*pageSize { //nolint:gosec // no file has a negative size
		return bad(prefix+name, "it has %d bytes, and %s has %d pages", info.Size(), from, pages)
	}
	return f.move(name)
}
