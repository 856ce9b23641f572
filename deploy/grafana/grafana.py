"""Grafana's format of dashboards: turns the rows and panels of make.py into JSON."""

WIDTH = 24  # columns of Grafana's grid
HEIGHT = 8  # rows of a panel


def variable(name):
    if name == "datasource":
        return {"name": name, "label": "Data source", "type": "datasource", "query": "prometheus"}
    query = {
        "job": "label_values(weir_build_info, job)",
        "instance": 'label_values(weir_build_info{job=~"$job"}, instance)',
        "rule": 'label_values(weir_decisions_total{job=~"$job"}, rule)',
    }[name]
    several = name != "instance"
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": several,
        "includeAll": several,
        **({"allValue": ".*", "current": {"text": "All", "value": "$__all"}} if several else {}),
    }


def thresholds(spec):
    """Thresholds of a figure. They are always written: without any, Grafana shows figures from 80 on in red."""
    steps = [("green", None), ("red", spec["alarm"])] if "alarm" in spec else spec.get("steps", [("text", None)])
    return {"mode": "absolute", "steps": [{"color": color, "value": value} for color, value in steps]}


def color_overrides(spec):
    return [
        {
            "matcher": {"id": "byName", "options": name},
            "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": color}}],
        }
        for name, color in spec.get("colors", {}).items()
    ]


def field_config(spec):
    defaults = {"unit": spec["unit"], "min": 0}
    if "maximum" in spec:
        defaults["max"] = spec["maximum"]
    if "none" in spec:
        defaults["noValue"] = spec["none"]
    if spec["kind"] == "stat":
        defaults["thresholds"] = thresholds(spec)
    if spec["kind"] == "timeseries":
        # Areas without lines: a line at the top of the stack would have the colour of a series that is 0.
        stacked = {"fillOpacity": 70, "lineWidth": 0, "stacking": {"mode": "normal"}}
        defaults["custom"] = stacked if spec.get("stacked") else {"fillOpacity": 0, "stacking": {"mode": "none"}}
    if spec["kind"] != "table":
        return {"defaults": defaults, "overrides": color_overrides(spec)}
    units = {"requests": "reqps", "rejected": "reqps", "memory": "bytes", "uptime": "s"}
    overrides = [
        {
            "matcher": {"id": "byName", "options": f"Value #{name}"},
            "properties": [{"id": "displayName", "value": name}, {"id": "unit", "value": units.get(name, "short")}],
        }
        for name in ("requests", "rejected", "generation", "memory", "uptime")
    ]
    link = {
        "title": "Instance",
        "url": "/d/weir-instance?var-instance=${__value.raw}&${datasource:queryparam}&${job:queryparam}&${__url_time_range}",
    }
    overrides.append({
        "matcher": {"id": "byName", "options": "instance"},
        "properties": [{"id": "links", "value": [link]}],
    })
    return {"defaults": {}, "overrides": overrides}


def options(spec):
    if spec["kind"] == "timeseries":
        return {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    if spec["kind"] == "stat":
        text = "name" if spec.get("name") else "value"
        return {"reduceOptions": {"calcs": ["lastNotNull"]}, "textMode": text, "graphMode": "none"}
    return {"showHeader": True}


def panel_json(spec, number, position):
    is_table = spec["kind"] == "table"
    source = {"type": "prometheus", "uid": "${datasource}"}
    targets = [
        {
            **one,
            # The name of a table's query is the name of its column.
            "refId": one["legendFormat"] if is_table else chr(ord("A") + index),
            "datasource": source,
            **({"format": "table", "instant": True} if is_table else {}),
        }
        for index, one in enumerate(spec["targets"])
    ]
    result = {
        "id": number,
        "type": spec["kind"],
        "title": spec["title"],
        "description": spec["description"],
        "datasource": source,
        "gridPos": position,
        "targets": targets,
        "fieldConfig": field_config(spec),
        "options": options(spec),
    }
    if is_table:
        hidden = {"Time": True, "Value #version": True}
        result["transformations"] = [
            {"id": "joinByField", "options": {"byField": "instance", "mode": "outer"}},
            {"id": "organize", "options": {"excludeByName": {**hidden, **{f"Time {n}": True for n in range(1, 7)}}}},
        ]
    return result


def layout(rows):
    """Panels with their positions: three or four in a line unless they have a width."""
    panels, y = [], 0
    for title, specs in rows:
        position = {"h": 1, "w": WIDTH, "x": 0, "y": y}
        panels.append({"id": len(panels) + 1, "type": "row", "title": title, "collapsed": False, "gridPos": position,
                       "panels": []})
        y, x, line = y + 1, 0, 0
        for spec in specs:
            width = spec.get("width", WIDTH // (3 if len(specs) % 3 == 0 else 4))
            height = 4 if spec["kind"] == "stat" else HEIGHT
            if x + width > WIDTH:
                x, y, line = 0, y + line, 0
            panels.append(panel_json(spec, len(panels) + 1, {"h": height, "w": width, "x": x, "y": y}))
            x, line = x + width, max(line, height)
        y += line
    return panels


def dashboard(uid, title, description, rows, variables):
    other = "weir-instance" if uid == "weir-fleet" else "weir-fleet"
    link = {
        "title": "Instance" if other == "weir-instance" else "Fleet",
        "type": "link",
        "url": f"/d/{other}",
        "includeVars": True,
        "keepTime": True,
        "icon": "dashboard",
    }
    return {
        "uid": uid,
        "title": title,
        "description": description,
        "tags": ["weir", "rate limiting"],
        "schemaVersion": 38,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "links": [link],
        "templating": {"list": [variable(name) for name in variables]},
        "annotations": {"list": [{
            "name": "Configuration applied",
            "datasource": {"type": "prometheus", "uid": "${datasource}"},
            "enable": True,
            "iconColor": "blue",
            "expr": 'changes(weir_config_generation{job=~"$job"}[1m]) > 0',
            "titleFormat": "configuration applied",
            "textFormat": "{{instance}}",
        }]},
        "panels": layout(rows),
    }
