package berthapi

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/berthrun/berth/internal/apisocket"
	"github.com/berthrun/berth/internal/berthapi/berthpb"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/profile"
)

// ProfileRequest chooses a profile of the daemon; see profile.Options.
type ProfileRequest struct {
	Name     string
	Duration time.Duration
	Text     bool
}

// GetProfile implements berthpb.BerthServer. A profile shows what the daemon works on, and slows it down: members of
// the socket's group have no right to either.
func (h *handlers) GetProfile(req *berthpb.GetProfileRequest, stream grpc.ServerStreamingServer[berthpb.GetProfileResponse]) error {
	if !apisocket.FromRoot(stream.Context()) {
		return fmt.Errorf("cannot profile the daemon: only root may: %w", errs.State)
	}
	to := bufio.NewWriterSize(chunkWriter(func(chunk []byte) error { return stream.Send(&berthpb.GetProfileResponse{Chunk: chunk}) }), chunkSize)
	err := profile.Write(stream.Context(), to, profile.Options{Name: req.GetName(), Duration: req.GetDuration().AsDuration(), Text: req.GetText()})
	if err != nil {
		return err
	}
	return to.Flush()
}

// Profile writes a profile of the daemon. On error the part that was written is no profile.
func (c *Client) Profile(ctx context.Context, req ProfileRequest, to io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.api.GetProfile(ctx, &berthpb.GetProfileRequest{Name: req.Name, Duration: durationpb.New(req.Duration), Text: req.Text})
	if err != nil {
		return err
	}
	return copyChunks(stream.Recv, to, "profile")
}
