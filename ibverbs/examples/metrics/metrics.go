// Package metrics shows how a program exports the counters of a device to expvar, Prometheus
// and OpenTelemetry. It is an example, to be copied. It is a module of its own, so that
// programs that use ibverbs don't get its dependencies. Each exporter reads Context.Stats
// only when it is asked, so nothing runs in between.
package metrics

import (
	"context"
	"expvar"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/govs-rdma/govs/ibverbs"
)

// Publish makes expvar show the device's statistics under name, as JSON, in /debug/vars.
func Publish(name string, vctx *ibverbs.Context) {
	expvar.Publish(name, expvar.Func(func() any {
		st, err := vctx.Stats()
		if err != nil {
			return map[string]string{"error": err.Error()}
		}
		return st
	}))
}

// operation is one row of a Traffic.
type operation struct {
	direction, opcode string
	ibverbs.OpCount
}

func operations(st *ibverbs.DeviceStats) []operation {
	var list []operation
	for direction, t := range map[string]*ibverbs.Traffic{"sent": &st.Sent, "received": &st.Received} {
		list = append(list,
			operation{direction, "send", t.Send},
			operation{direction, "write", t.Write},
			operation{direction, "read_request", t.ReadRequest},
			operation{direction, "read_response", t.ReadResponse},
			operation{direction, "atomic_request", t.AtomicRequest},
			operation{direction, "atomic_response", t.AtomicResponse},
			operation{direction, "immediate", t.Immediate},
		)
	}
	return list
}

// Collector is a prometheus.Collector of a device.
type Collector struct {
	vctx *ibverbs.Context

	messages, bytes, flushed, terminates, refused, crc, qps *prometheus.Desc
}

// NewCollector makes a Collector of vctx.
func NewCollector(vctx *ibverbs.Context) *Collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("rdma_"+name, help, labels, prometheus.Labels{"device": vctx.Name()})
	}
	return &Collector{
		vctx:     vctx,
		messages: desc("messages_total", "RDMA messages.", "direction", "opcode"),
		bytes:    desc("bytes_total", "Payload of RDMA messages.", "direction", "opcode"),
		flushed:  desc("flushed_total", "Work requests that were flushed.", "queue"),
		terminates: desc("terminates_total", "Connections that a Terminate has ended.", "direction",
			"layer", "type", "code"),
		refused: desc("refused_total", "What a limit has refused or ended.", "limit"),
		crc:     desc("crc_errors_total", "FPDUs with a wrong CRC."),
		qps:     desc("qps", "Open QPs."),
	}
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	st, err := c.vctx.Stats()
	if err != nil {
		ch <- prometheus.NewInvalidMetric(c.qps, err)
		return
	}
	count := func(d *prometheus.Desc, n uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	for _, o := range operations(&st) {
		count(c.messages, o.Messages, o.direction, o.opcode)
		count(c.bytes, o.Octets, o.direction, o.opcode)
	}
	count(c.flushed, st.FlushedSends, "send")
	count(c.flushed, st.FlushedRecvs, "receive")
	count(c.crc, st.CRCErrors)
	for _, t := range st.Terminates {
		count(c.terminates, t.Count, direction(t), digit(t.Layer), digit(t.EType), digit(t.Code))
	}
	for limit, n := range st.Refused {
		count(c.refused, n, limit)
	}
	ch <- prometheus.MustNewConstMetric(c.qps, prometheus.GaugeValue, float64(st.QPs))
}

// Observe makes meter report the messages and bytes of a device.
func Observe(meter metric.Meter, vctx *ibverbs.Context) error {
	messages, err := meter.Int64ObservableCounter("rdma.messages", metric.WithDescription("RDMA messages"))
	if err != nil {
		return err
	}
	octets, err := meter.Int64ObservableCounter("rdma.io", metric.WithUnit("By"))
	if err != nil {
		return err
	}
	_, err = meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		st, err := vctx.Stats()
		if err != nil {
			return err
		}
		for _, op := range operations(&st) {
			attrs := metric.WithAttributes(
				attribute.String("device", vctx.Name()),
				attribute.String("direction", op.direction), attribute.String("opcode", op.opcode))
			o.ObserveInt64(messages, int64(op.Messages), attrs)
			o.ObserveInt64(octets, int64(op.Octets), attrs)
		}
		return nil
	}, messages, octets)
	return err
}

func direction(t ibverbs.TerminateCount) string {
	if t.Remote {
		return "received"
	}
	return "sent"
}

func digit(n uint8) string { return strconv.Itoa(int(n)) }
