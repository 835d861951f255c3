package metrics

import (
	"context"
	"expvar"
	"net/netip"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/engine"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// TestExporters sends one message of five bytes, and looks for it in each exporter.
func TestExporters(t *testing.T) {
	vctx := oneMessage(t)
	Publish("govs0", vctx)
	if got := expvar.Get("govs0").String(); !strings.Contains(got, `"Send":{"Messages":1,"Octets":5}`) {
		t.Errorf("expvar: %s", got)
	}

	registry := prometheus.NewPedanticRegistry()
	testkit.OK(t, registry.Register(NewCollector(vctx)))
	families, err := registry.Gather()
	testkit.OK(t, err)
	if len(families) == 0 {
		t.Error("Prometheus: nothing")
	}
	const want = `# HELP rdma_qps Open QPs.
# TYPE rdma_qps gauge
rdma_qps{device="govs0"} 2
`
	testkit.OK(t, testutil.GatherAndCompare(registry, strings.NewReader(want), "rdma_qps"))

	reader := sdk.NewManualReader()
	testkit.OK(t, Observe(sdk.NewMeterProvider(sdk.WithReader(reader)).Meter("test"), vctx))
	var data metricdata.ResourceMetrics
	testkit.OK(t, reader.Collect(context.Background(), &data))
	var octets int64
	for _, m := range data.ScopeMetrics[0].Metrics {
		if m.Name == "rdma.io" {
			for _, p := range m.Data.(metricdata.Sum[int64]).DataPoints {
				octets += p.Value
			}
		}
	}
	if octets != 10 { // sent and received on the same device
		t.Errorf("OpenTelemetry: %d bytes", octets)
	}
}

// oneMessage opens a device, connects it to itself, and sends "hello".
func oneMessage(t *testing.T) *ibverbs.Context {
	ctx := t.Context()
	vctx, err := ibverbs.Open(engine.New(nil), "")
	testkit.OK(t, err)
	l, err := rdmacm.Listen(ctx, vctx, netip.MustParseAddrPort("127.0.0.1:0"), nil)
	testkit.OK(t, err)
	accepted := make(chan *rdmacm.Conn, 1)
	go func() {
		req, err := l.Accept(ctx)
		if err == nil {
			var c *rdmacm.Conn
			c, err = req.Accept(ctx,
				&rdmacm.ConnConfig{Prepare: func(_ context.Context, c *rdmacm.Conn,
					_ *rdmacm.ConnParam) error {
					mr, err := c.PD().AllocMR(64, ibverbs.AccessLocalWrite)
					if err != nil {
						return err
					}
					sge, err := mr.SGE(0, 64)
					if err != nil {
						return err
					}
					return c.QP().PostRecv(ibverbs.RecvWR{SGList: []ibverbs.SGE{sge}})
				}})
			accepted <- c
		}
		if err != nil {
			t.Error(err)
		}
	}()
	client, err := rdmacm.Dial(ctx, vctx, l.Addr(), nil)
	testkit.OK(t, err)
	mr, err := client.PD().RegMR([]byte("hello"), 0)
	testkit.OK(t, err)
	sge, err := mr.SGE(0, 5)
	testkit.OK(t, err)
	testkit.OK(t, client.QP().PostSend(ibverbs.SendWR{
		Opcode: ibverbs.WRSend, Flags: ibverbs.SendSignaled, SGList: []ibverbs.SGE{sge},
	}))
	server := <-accepted
	var wc [1]ibverbs.WC
	_, err = server.RecvCQ().PollWait(ctx, wc[:])
	testkit.OK(t, err)
	return vctx // the process ends
}
