package importdirs

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/image"
)

// pullPause is how long each read of an archive waits for pulls that run. At 256 KiB a read an archive is read with some
// 12 MiB/s beside them. It does not wait until they end: on a node without a way to its registries, the pulls of pods that
// want the images of the archive hang until their time limit.
const pullPause = 20 * time.Millisecond

// read imports the archive that made describes, and adds to made what it has found. It returns no images if the content is
// that of the last import.
func (i *Importer) read(ctx context.Context, made *record, pin bool, at *image.Stages) ([]image.Image, error) {
	opened, err := os.OpenFile(made.Path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0) // not to wait at a named pipe
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errChanges
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open the archive: %w", err)
	}
	defer opened.Close()
	if err := unchanged(opened, made.state); err != nil {
		return nil, err
	}
	at.Say("reading", fmt.Sprintf("the file, %d bytes", made.Size))
	if former, ok := i.imported().get(made.Path); ok && former.Digest != "" && former.Size == made.Size {
		same := &reading{ctx: ctx, file: opened, sum: sha256.New(), awaitIdle: i.cfg.AwaitIdle}
		if err := same.rest(); err != nil {
			return nil, err
		}
		if same.digest() == former.Digest {
			made.Digest, made.Names, made.Pinned = former.Digest, former.Names, former.Pinned
			return nil, unchanged(opened, made.state)
		}
		if _, err := opened.Seek(0, io.SeekStart); err != nil {
			return nil, err
		}
	}
	r := &reading{ctx: ctx, file: opened, sum: sha256.New(), awaitIdle: i.cfg.AwaitIdle}
	before := i.cfg.Pinned()
	images, err := i.cfg.Import(ctx, r, pin, func(p image.Progress) { at.Say(stageOf(p, made.Size)) })
	if changed := unchanged(opened, made.state); changed != nil {
		return nil, changed
	}
	if err != nil {
		return nil, err
	}
	if err := r.rest(); err != nil {
		return nil, err
	}
	made.Digest = r.digest()
	for _, img := range images {
		if pin && (!before[img.ID] || i.imported().pins(img.ID)) {
			made.Pinned = append(made.Pinned, img.ID)
		}
		made.Names = append(append(made.Names, img.Tags...), img.Digests...)
		if len(img.Tags)+len(img.Digests) == 0 {
			made.Names = append(made.Names, img.ID)
		}
	}
	return images, unchanged(opened, made.state)
}

// stageOf is a stage of an import, and what it waits for.
func stageOf(p image.Progress, size int64) (stage, waitsFor string) {
	switch p.Stage {
	case "fetching":
		return "reading", fmt.Sprintf("the file, %d of %d bytes", min(p.Done, size), size)
	case "unpacking":
		return p.Stage, fmt.Sprintf("the disk, %d of %d bytes", p.Done, p.Total)
	}
	return p.Stage, "the record of the images"
}

// unchanged returns errChanges if an open file differs from its earlier state, or is not a regular file.
func unchanged(opened *os.File, was state) error {
	info, err := opened.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || stateOf(info) != was {
		return errChanges
	}
	return nil
}

// reading reads a file, and computes its digest.
type reading struct {
	ctx       context.Context //nolint:containedctx // of the one import that reads
	file      io.Reader
	sum       hash.Hash
	awaitIdle func(context.Context) error
}

func (r *reading) Read(p []byte) (int, error) {
	turn, cancel := context.WithTimeout(r.ctx, pullPause)
	_ = r.awaitIdle(turn) // the time is over, or no pull runs
	cancel()
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	n, err := r.file.Read(p)
	r.sum.Write(p[:n])
	return n, err
}

// rest reads what is left: an archive may end before its file.
func (r *reading) rest() error {
	if _, err := io.CopyBuffer(io.Discard, struct{ io.Reader }{r}, make([]byte, 256<<10)); err != nil {
		return fmt.Errorf("cannot read the archive: %w", err)
	}
	return nil
}

func (r *reading) digest() digest.Digest { return digest.NewDigest(digest.SHA256, r.sum) }

// jobID is the id of the job that imports a file.
func jobID(path string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(path)))[:32] }
