package image

import (
	"context"
	"crypto/rand"
	"os"
	"path/filepath"
	"strings"
)

// poolSize is how many directories are kept ready. Making one takes a millisecond
// on ext4, which a container's start need not wait for.
const poolSize = 16

// dirPool keeps directories with upper and work in them ready for use. Its mode
// bits do not depend on the umask.
type dirPool struct {
	ready chan string
}

// start fills the pool and keeps it filled until the store closes.
func (p *dirPool) start(s *Images) {
	p.ready = make(chan string, poolSize)
	s.do(func(ctx context.Context) {
		for {
			dir, err := p.make(s)
			if err != nil {
				// Whoever needs one makes it and tells the error.
				dir = ""
			}
			select {
			case p.ready <- dir:
			case <-ctx.Done():
				return
			}
		}
	})
}

// take returns a ready directory, or makes one.
func (p *dirPool) take(s *Images) (string, error) {
	select {
	case dir := <-p.ready:
		if dir != "" {
			return dir, nil
		}
	default:
	}
	return p.make(s)
}

func (p *dirPool) make(s *Images) (string, error) {
	dir := filepath.Join(s.poolDir(), strings.ToLower(rand.Text()))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	// The upper directory's owner and mode are those of the root directory in the
	// container.
	for name, mode := range map[string]os.FileMode{upperName: 0o755, workName: 0o700} {
		path := filepath.Join(dir, name)
		if err := os.Mkdir(path, mode); err != nil {
			return "", err
		}
		if err := os.Chmod(path, mode); err != nil {
			return "", err
		}
	}
	return dir, nil
}
