SELECT j.id, timeout FROM json_each(:rows) i CROSS JOIN _jobs j ON j.n = i.value
