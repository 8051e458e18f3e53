/*
 * reseed.node: lets JavaScript reseed the OpenSSL generator of its own process, which Node.js offers no way to do.
 *
 *     require('./reseed.node').add(buffer)
 *
 * RAND_add on OpenSSL 3 reseeds the primary generator from the kernel and mixes the buffer in; the generators of all
 * threads notice and reseed from it before their next bytes. Symbols of Node-API and of libcrypto come from the node
 * process itself, so neither's headers are needed: the declarations below are from their stable ABIs.
 */
#include <stdbool.h>
#include <stddef.h>

typedef struct napi_env__ *napi_env;
typedef struct napi_value__ *napi_value;
typedef struct napi_callback_info__ *napi_callback_info;
typedef napi_value (*napi_callback)(napi_env, napi_callback_info);

extern int napi_get_cb_info(napi_env, napi_callback_info, size_t *argc, napi_value *argv, napi_value *this_arg,
                            void **data);
extern int napi_is_buffer(napi_env, napi_value, bool *result);
extern int napi_get_buffer_info(napi_env, napi_value, void **data, size_t *length);
extern int napi_create_function(napi_env, const char *name, size_t length, napi_callback, void *data,
                                napi_value *result);
extern int napi_set_named_property(napi_env, napi_value object, const char *name, napi_value value);
extern int napi_throw_type_error(napi_env, const char *code, const char *message);
extern void RAND_add(const void *bytes, int length, double entropy);

static napi_value add(napi_env env, napi_callback_info info)
{
	napi_value argument;
	size_t argc = 1, length = 0;
	bool is_buffer = false;
	void *bytes = NULL;

	/* Node.js 18 ends the process where it is asked for the bytes of what is no buffer. */
	if (napi_get_cb_info(env, info, &argc, &argument, NULL, NULL) || argc != 1 ||
	    napi_is_buffer(env, argument, &is_buffer) || !is_buffer ||
	    napi_get_buffer_info(env, argument, &bytes, &length) || length == 0 || length > 4096) {
		napi_throw_type_error(env, NULL, "add takes a buffer of 1 to 4096 bytes");
		return NULL;
	}
	RAND_add(bytes, (int)length, (double)length);
	return NULL;
}

__attribute__((visibility("default"))) napi_value napi_register_module_v1(napi_env env, napi_value exports)
{
	napi_value function;

	if (napi_create_function(env, "add", 3, add, NULL, &function) == 0)
		napi_set_named_property(env, exports, "add", function);
	return exports;
}
