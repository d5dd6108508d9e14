package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// pullCase is a set of images that are pulled at once. kind is its name in -pull-cases, name that of its rows.
type pullCase struct {
	kind, name string
	tags       []string
	// make makes the images.
	make func() error
}

// singleCase is the case that is compared with bare inflaters.
const singleCase = "single"

// pulls measures pulls of images from the loopback registry, in turns, with cold caches: time until the answer, and CPU
// time of the runtime with all of its helpers.
//
// Before each pull the page cache, and the caches of names and inodes are dropped, and the kernel has written what there was
// to write. So no runtime finds its database, its programs or freed blocks in memory, and none waits for what the one before
// has left. After that the bench reads the layers of the case once: the disk below the registry would hide the differences
// between runtimes, and it is shared with them. The CPU time is read after the kernel has written all to disk. So it has
// what a runtime does in the background after its answer, such as a sync. The work of the kernel's threads, which write
// pages to the disk, counts for none: it is the same for the same files. After each pull the images are removed, and the
// next turn begins once their files are gone.
func pulls(ctx context.Context, o options, peers []*peer, r *registry) (t *table, err error) {
	fmt.Fprintln(os.Stderr, "bench: making the images to pull")
	cases, err := makePullImages(ctx, o, r.dir)
	if err != nil {
		return nil, fmt.Errorf("cannot make the images to pull: %w", err)
	}
	t = &table{Title: fmt.Sprintf("Image pulls with cold caches (median of %d)", o.pullRounds)}
	for _, c := range cases {
		bytes, err := r.dir.sizeOf(c.tags...)
		if err != nil {
			return nil, err
		}
		t.Notes = append(t.Notes, fmt.Sprintf("%s: %.0f MB compressed", c.name, float64(bytes)/1e6))
	}
	t.Notes = append(t.Notes, inflatersOfContainerd())
	peers, stop, err := withPlainContainerd(ctx, o, t, peers, r)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	for range o.pullRounds {
		for _, c := range cases {
			for _, p := range peers {
				if err := coldPull(ctx, t, p, r, c); err != nil {
					return nil, fmt.Errorf("%s: %s: %w", p.name, c.name, err)
				}
			}
			if c.kind != singleCase {
				continue
			}
			if err := inflateAll(ctx, t, o, r, c); err != nil {
				return nil, err
			}
		}
	}
	noteFastest(t, cases)
	return t, nil
}

// makePullImages makes the images of the cases that were asked for.
func makePullImages(ctx context.Context, o options, dir blobDir) ([]pullCase, error) {
	const mib, images = 1 << 20, 10
	m, err := readMaterial(ctx, o.bin)
	if err != nil {
		return nil, err
	}
	one := func(kind string, size, count int, compression string) pullCase {
		tag := kind + ":1"
		name := fmt.Sprintf("%d MiB, %d layers, %s", size, count, compression)
		if count == 1 {
			name = fmt.Sprintf("%d MiB, 1 layer, %s", size, compression)
		}
		return pullCase{kind, name, []string{tag}, func() error {
			var specs []layerSpec
			for i := range count {
				specs = append(specs, layerSpec{fmt.Sprintf("layer%d", i), int64(size) * mib / int64(count), int64(i) * 29 * mib, compression})
			}
			layers, err := dir.storeAll(ctx, m, specs)
			if err != nil {
				return err
			}
			return dir.storeImage(tag, layers...)
		}}
	}
	shared := pullCase{kind: "shared", name: fmt.Sprintf("%d MiB, %d images at once, gzip", o.pullMiB, images)}
	for i := range images {
		shared.tags = append(shared.tags, fmt.Sprintf("shared%d:1", i))
	}
	shared.make = func() error { return makeSharing(ctx, o, m, dir, shared.tags) }
	cases := []pullCase{
		one("six", o.pullMiB, 6, "gzip"), one(singleCase, o.singleMiB, 1, "gzip"), one("many", o.pullMiB, o.pullLayers, "gzip"), shared, one("zstd", o.pullMiB, 6, "zstd"),
	}
	cases = slices.DeleteFunc(cases, func(c pullCase) bool { return !slices.Contains(strings.Split(o.pullCases, ","), c.kind) })
	if len(cases) == 0 {
		return nil, fmt.Errorf("-pull-cases: no kind of the name %q", o.pullCases)
	}
	for _, c := range cases {
		if err := c.make(); err != nil {
			return nil, err
		}
	}
	return cases, nil
}

// makeSharing makes images. All share three layers with half of the bytes, each half of them shares one with a tenth, and
// each has one of its own.
func makeSharing(ctx context.Context, o options, m *material, dir blobDir, tags []string) error {
	tenth := int64(o.pullMiB) << 20 / 10
	var specs []layerSpec
	add := func(name string, bytes int64) {
		specs = append(specs, layerSpec{name, bytes, int64(len(specs)) * 23 << 20, "gzip"})
	}
	for i := range 3 {
		add(fmt.Sprintf("base%d", i), tenth*5/3)
	}
	add("even", tenth)
	add("odd", tenth)
	for i := range tags {
		add(fmt.Sprintf("own%d", i), tenth*3/int64(len(tags)))
	}
	layers, err := dir.storeAll(ctx, m, specs)
	if err != nil {
		return err
	}
	for i, tag := range tags {
		if err := dir.storeImage(tag, layers[0], layers[1], layers[2], layers[3+i%2], layers[5+i]); err != nil {
			return err
		}
	}
	return nil
}

// inflatersOfContainerd says which programs containerd uses to inflate gzip: the first of them that is in its PATH.
func inflatersOfContainerd() string {
	var found []string
	for _, name := range []string{"igzip", "unpigz"} {
		if _, err := exec.LookPath(name); err == nil {
			found = append(found, name)
		}
	}
	if found == nil {
		return "containerd had neither igzip nor unpigz in its PATH, and inflated by itself"
	}
	return fmt.Sprintf("containerd had %s in its PATH, and inflated with %s", strings.Join(found, " and "), found[0])
}

// withPlainContainerd adds a containerd that inflates by itself, if the other one uses a program for that. stop ends it.
func withPlainContainerd(ctx context.Context, o options, t *table, peers []*peer, r *registry) (all []*peer, stop func() error, err error) {
	_, igzip := exec.LookPath("igzip")
	_, unpigz := exec.LookPath("unpigz")
	if igzip != nil && unpigz != nil || !slices.ContainsFunc(peers, func(p *peer) bool { return p.name == "containerd" }) {
		return peers, func() error { return nil }, nil
	}
	plain := newContainerd(o, "no-igzip", r)
	plain.argv = append([]string{"env", "CONTAINERD_DISABLE_IGZIP=1", "CONTAINERD_DISABLE_PIGZ=1"}, plain.argv...)
	if err := os.MkdirAll(filepath.Dir(plain.socket), 0o755); err != nil {
		return nil, nil, err
	}
	if err := plain.start(ctx); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("cannot start a containerd that inflates by itself: %w", err), plain.shutdown())
	}
	all = append(append([]*peer{}, peers...), plain)
	t.Peers = infos(all)
	t.Notes = append(t.Notes, plain.name+" is a containerd with CONTAINERD_DISABLE_IGZIP and CONTAINERD_DISABLE_PIGZ: it inflates by itself")
	return all, plain.shutdown, nil
}

// coldPull measures one turn of a runtime.
func coldPull(ctx context.Context, t *table, p *peer, r *registry, c pullCase) error {
	empty, err := diskUsage(filepath.Dir(p.socket))
	if err != nil {
		return err
	}
	if err := dropCaches(); err != nil {
		return err
	}
	if err := r.warm(c.tags); err != nil {
		return err
	}
	before, err := p.cpu()
	if err != nil {
		return err
	}
	begin := time.Now()
	group, groupCtx := errgroup.WithContext(ctx)
	for _, tag := range c.tags {
		group.Go(func() error { return p.pull(groupCtx, r.image(tag)) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	took := time.Since(begin)
	unix.Sync()
	after, err := p.cpu()
	if err != nil {
		return err
	}
	t.median(p.name, c.name, "s", took.Seconds())
	t.median(p.name, "CPU: "+c.name, "s", (after - before).Seconds())
	size, err := r.dir.sizeOf(c.tags...)
	if err != nil {
		return err
	}
	for _, tag := range c.tags {
		if err := p.removeImage(ctx, r.image(tag)); err != nil {
			return err
		}
	}
	return p.awaitRemoval(ctx, empty+size/20)
}

// dropCaches writes all dirty pages, and empties the kernel's caches of files.
func dropCaches() error {
	unix.Sync()
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0); err != nil {
		return fmt.Errorf("cannot drop the kernel's caches: %w", err)
	}
	return nil
}

// removalTimeout bounds the wait for the files of removed images to be gone.
const removalTimeout = time.Minute

// awaitRemoval waits until a runtime's files have no more bytes than given.
func (p *peer) awaitRemoval(ctx context.Context, most int64) error {
	for deadline := time.Now().Add(removalTimeout); ; {
		used, err := diskUsage(filepath.Dir(p.socket))
		if err != nil || used <= most {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("its images are removed, and its files still have %d bytes after %s, want %d at most", used, removalTimeout, most)
		}
		if err := sleep(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}

// diskUsage is how many bytes the files below a directory occupy.
func diskUsage(dir string) (bytes int64, err error) {
	err = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(path, &st)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it is removed meanwhile
		}
		if err != nil {
			return fmt.Errorf("cannot sum up the files of %s: %w", path, err)
		}
		bytes += st.Blocks * 512
		return nil
	})
	return bytes, err
}

// removeImage removes an image by its id, as a kubelet does: cri-dockerd keeps an image that is
// removed by its name.
func (p *peer) removeImage(ctx context.Context, name string) error {
	status, err := p.images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: name}})
	if err != nil {
		return fmt.Errorf("ImageStatus: %w", err)
	}
	if status.Image == nil {
		return fmt.Errorf("image %s is missing after its pull", name)
	}
	_, err = p.images.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: status.Image.Id}})
	if err != nil {
		return fmt.Errorf("RemoveImage: %w", err)
	}
	return nil
}
