package apisocket

import (
	"context"
	"net"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"

	"github.com/berthrun/berth/internal/sys/sysfd"
)

// Credentials returns the credentials of a gRPC server whose handlers call PeerPid. They do not
// encrypt.
func Credentials() credentials.TransportCredentials {
	return peerCredentials{insecure.NewCredentials()}
}

// PeerPid returns the pid of the process that made the connection of a request, as the kernel
// recorded it. It is 0 for a process of another PID namespace, which has no pid here.
func PeerPid(ctx context.Context) int {
	if p, ok := peer.FromContext(ctx); ok {
		if process, ok := p.AuthInfo.(process); ok {
			return process.pid
		}
	}
	return 0
}

// FromRoot reports whether a process of root made the connection of a request, as the kernel recorded it.
func FromRoot(ctx context.Context) bool {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return false
	}
	process, ok := p.AuthInfo.(process)
	return ok && process.known && process.uid == 0
}

// process is at the other end of a connection. known says that pid and uid are the kernel's.
type process struct {
	credentials.AuthInfo
	pid, uid int
	known    bool
}

type peerCredentials struct {
	credentials.TransportCredentials
}

// ServerHandshake implements credentials.TransportCredentials.
func (c peerCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secured, info, err := c.TransportCredentials.ServerHandshake(conn)
	if err != nil {
		return nil, nil, err
	}
	peer := process{AuthInfo: info}
	if unixConn, ok := conn.(*net.UnixConn); ok {
		if peer.pid, peer.uid, err = sysfd.PeerPid(unixConn); err != nil {
			return nil, nil, err
		}
		peer.known = true
	}
	return secured, peer, nil
}

// Clone implements credentials.TransportCredentials.
func (c peerCredentials) Clone() credentials.TransportCredentials {
	return peerCredentials{c.TransportCredentials.Clone()}
}
