package clustercmd

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"github.com/berthrun/berth/internal/cluster"
	"github.com/berthrun/berth/internal/errs"
)

// alone makes sure that no other berth of this user makes or changes the cluster meanwhile: each
// would take what the other has made so far for something that is left. The name of a socket
// that is in no file system is the lock, which goes with the process however that ends.
func alone(ctx context.Context, engine cluster.Engine, name string) (release func(), err error) {
	// Engines of one name may be several: by their roots, and by what tells their tools
	// where they are.
	which := sha256.Sum256([]byte(engine.Name() + "\x00" + engine.Facts().Root + "\x00" + os.Getenv("DOCKER_HOST") + "\x00" + os.Getenv("CONTAINER_HOST") + "\x00" + name))
	var lc net.ListenConfig
	lock, err := lc.Listen(ctx, "unix", fmt.Sprintf("@berth-cluster-%d-%x", os.Getuid(), which))
	switch {
	case err == nil:
		return func() { lock.Close() }, nil
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("another berth makes or changes the cluster %s at this moment; wait until it has ended: %w", name, errs.State)
	}
	return nil, fmt.Errorf("cannot lock the cluster %s: %w", name, err)
}
