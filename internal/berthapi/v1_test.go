package berthapi_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/berthrun/berth/internal/berthapi"
	"github.com/berthrun/berth/internal/errs"
)

// v1Methods are the calls of version 1. The value is true if the answer is a stream.
func v1Methods() map[string]bool {
	return map[string]bool{
		"ListJobs": false, "ListLayers": false, "TagImage": false,
		"PullImage": true, "ImportImage": true, "ImportFile": true, "ExportImage": true,
	}
}

// callV1 calls a method as a client of version 1 does.
func callV1(ctx context.Context, conn grpc.ClientConnInterface, method string, streams bool) error {
	req, resp := wrapperspb.Bytes([]byte(`{"ref":"a:1","image":"a:1","names":["b:1"]}`)), &wrapperspb.BytesValue{}
	if !streams {
		return conn.Invoke(ctx, "/berth.v1.Berth/"+method, req, resp)
	}
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/berth.v1.Berth/"+method)
	if err != nil {
		return err
	}
	if err := errors.Join(stream.SendMsg(req), stream.CloseSend()); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return stream.RecvMsg(resp)
}

// TestOlderClient: an older client gets an error that names the fix. The daemon changes nothing.
func TestOlderClient(t *testing.T) {
	api := &berthapi.Server{Images: &fakeImages{}, Jobs: func() []berthapi.Job { t.Error("the daemon served the call"); return nil }}
	conn, err := grpc.NewClient(connect(t, api.Register).Endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for method, streams := range v1Methods() {
		answer := status.Convert(callV1(t.Context(), conn, method, streams))
		want := "cannot serve " + method + ": this program is older than the daemon"
		// An older client takes "unknown service" to mean another runtime. If the call is not
		// implemented, it pulls through CRI.
		if answer.Code().String() != "Unimplemented" || !strings.HasPrefix(answer.Message(), want) {
			t.Errorf("%s: %v, want %s", method, answer, want)
		}
	}
}

// registerV1 registers the service of version 1 alone, as an older daemon does.
func registerV1(to grpc.ServiceRegistrar) {
	desc := &grpc.ServiceDesc{ServiceName: "berth.v1.Berth", HandlerType: (*any)(nil)}
	for method := range v1Methods() {
		desc.Streams = append(desc.Streams, grpc.StreamDesc{StreamName: method, ServerStreams: true, ClientStreams: true, Handler: func(any, grpc.ServerStream) error {
			return errors.New("a newer client called version 1")
		}})
	}
	to.RegisterService(desc, nil)
}

// TestOlderDaemon: each call to an older daemon fails with an error that names the fix.
func TestOlderDaemon(t *testing.T) {
	conn := connect(t, registerV1)
	_, jobsErr := conn.Berth.ListJobs(t.Context())
	_, layersErr := conn.Berth.ListLayers(t.Context())
	_, pullErr := conn.Berth.PullImage(t.Context(), berthapi.PullRequest{Ref: "a:1"}, nil)
	_, fileErr := conn.Berth.ImportImage(t.Context(), berthapi.ImportRequest{}, archiveFile(t, 9), nil)
	_, sendErr := conn.Berth.ImportImage(t.Context(), berthapi.ImportRequest{}, endless{}, nil)
	for call, err := range map[string]error{
		"jobs": jobsErr, "layers": layersErr, "pull": pullErr, "import of a file": fileErr, "import": sendErr,
		"tag":    conn.Berth.TagImage(t.Context(), berthapi.TagRequest{Image: "a:1", Names: []string{"b:1"}}),
		"export": conn.Berth.ExportImage(t.Context(), berthapi.ExportRequest{Refs: []string{"a:1"}}, io.Discard),
	} {
		if !errors.Is(err, errs.Unsupported) || !strings.Contains(err.Error(), "older than this program") {
			t.Errorf("%s: %v", call, err)
		}
	}
}
